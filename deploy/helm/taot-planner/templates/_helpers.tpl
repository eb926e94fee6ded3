{{- define "taot-planner.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "taot-planner.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "taot-planner.labels" -}}
{{ include "taot-planner.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "taot-planner.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "taot-planner.scheme" -}}
{{ empty .Values.tls.secret | ternary "http" "https" }}
{{- end }}

{{- /* Secrets that the planner reads, by the name of their volume. */}}
{{- define "taot-planner.secrets" -}}
{{- if and .Values.tls.clientCaSecret (not .Values.tls.secret) }}
{{- fail "tls.clientCaSecret needs tls.secret: there are no client certificates without TLS" }}
{{- end }}
{{- with .Values.tls.secret }}
tls: {{ . }}
{{- end }}
{{- with .Values.tls.clientCaSecret }}
client-ca: {{ . }}
{{- end }}
{{- with .Values.auth.tokensSecret }}
auth: {{ . }}
{{- end }}
{{- end }}
