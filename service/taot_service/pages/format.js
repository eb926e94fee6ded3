// Numbers as people read them.

export function percent(value) {
  if (value === null || value === undefined) return "\u2013";
  const hundred = value * 100;
  return `${hundred.toFixed(hundred < 99.95 ? 1 : 0)}%`;
}

export function count(value) {
  if (value === null || value === undefined) return "\u2013";
  return Math.round(value).toLocaleString("en");
}

export function decimal(value) {
  return value === null || value === undefined ? "\u2013" : String(Math.round(value * 100) / 100);
}

export function seconds(value) {
  if (value === null || value === undefined) return "\u2013";
  const size = Math.abs(value);
  if (size < 1e-3) return `${(value * 1e6).toFixed(0)} \u00b5s`;
  if (size < 1) return `${(value * 1e3).toFixed(1)} ms`;
  if (size < 120) return `${value.toFixed(0)} s`;
  if (size < 7200) return `${(value / 60).toFixed(0)} min`;
  return size < 172800 ? `${(value / 3600).toFixed(0)} h` : `${(value / 86400).toFixed(0)} d`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024;
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
