// What the map draws as one bar: a rank, or above MOST_PLACES ranks a whole domain such as a node.

const MOST_PLACES = 128;

// Returns { unit, level, places: [{ name, ranks, band }], placeOf: [rank -> place] }.
export function placesOf(topology) {
  const numRanks = topology.domains.length;
  const level = levelFor(topology, numRanks);
  const keyOf = (rank) => (level < 0 ? rank : topology.domains[rank][level]);
  const ranks = [...Array(numRanks).keys()].sort((a, b) => compare(topology.domains[a], topology.domains[b]) || a - b);
  const places = [];
  const placeOf = new Array(numRanks);
  const unit = level < 0 ? "rank" : topology.levels[level].name;
  const bandLevel = Math.min(level + 1, topology.levels.length - 1);
  for (const rank of ranks) {
    const key = keyOf(rank);
    if (!places.length || places.at(-1).key !== key) {
      places.push({ key, name: `${unit} ${key}`, ranks: [], band: topology.domains[rank][bandLevel] });
    }
    places.at(-1).ranks.push(rank);
    placeOf[rank] = places.length - 1;
  }
  return { unit, level, places, placeOf, bandName: topology.levels[bandLevel].name };
}

// Ranks while they fit, then the innermost domains that fit, or nodes that scroll where none do.
function levelFor(topology, numRanks) {
  if (numRanks <= MOST_PLACES) return -1;
  for (let level = 0; level < topology.levels.length; level += 1) {
    const size = new Set(topology.domains.map((domains) => domains[level])).size;
    if (size > 1 && size <= MOST_PLACES) return level;
  }
  return 0;
}

function compare(first, second) {
  for (let level = first.length - 1; level >= 0; level -= 1) {
    if (first[level] !== second[level]) return first[level] - second[level];
  }
  return 0;
}

// The load of a place is that of its last rank: a step waits for it. Speeds turn tokens into times.
export function heightsOf(loads, speedsMilli, places) {
  return places.map((place) => Math.max(...place.ranks.map((rank) => (loads[rank] * 1000) / speedsMilli[rank])));
}

// Guests by pair of places: { from, to, level, guests, tokens }, and those that stay inside one place.
export function arcsOf(guests, placeOf) {
  const arcs = new Map();
  for (const guest of guests) {
    const [from, to] = [placeOf[guest.source], placeOf[guest.rank]];
    const key = `${from} ${to} ${guest.level}`;
    const arc = arcs.get(key) ?? { from, to, level: guest.level, levelName: guest.level_name, experts: [], tokens: 0 };
    arc.experts.push(guest.expert);
    arc.tokens += guest.tokens;
    arcs.set(key, arc);
  }
  return [...arcs.values()];
}
