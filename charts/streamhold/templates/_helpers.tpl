{{/* Name of the objects: the release's, with the chart's name unless it is in there already. */}}
{{- define "streamhold.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of cluster-wide objects: two releases of one name in two namespaces must not share them. */}}
{{- define "streamhold.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "streamhold.fullname" .) -}}
{{- end -}}

{{/* What selects the operator's pods; it never changes during the life of a release. */}}
{{- define "streamhold.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "streamhold.labels" -}}
{{ include "streamhold.selectorLabels" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "streamhold.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "streamhold.fullname" .) -}}
{{- end -}}

{{- define "streamhold.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* What the operator does with objects of its own kinds; each rule names the call it is for. */}}
{{- define "streamhold.kindRules" -}}
# Watching the four kinds, and reading one anew before acting on it.
- apiGroups: [streamhold.dev]
  resources: [redisconnections, streamtopics, leasepolicies, coordinationclients]
  verbs: [get, list, watch]
# The finalizer, on the kinds whose deletion must reach Redis.
- apiGroups: [streamhold.dev]
  resources: [streamtopics, coordinationclients]
  verbs: [patch]
# Status by server-side apply.
- apiGroups: [streamhold.dev]
  resources: [redisconnections/status, streamtopics/status, leasepolicies/status, coordinationclients/status]
  verbs: [patch]
{{- end -}}

{{/* What it does besides in the namespaces that it serves. */}}
{{- define "streamhold.namespaceRules" -}}
# Reading the logins that connections and clients name, watching and writing the binding Secrets.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch, create, patch, delete]
# Telling what changed in `kubectl describe`.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* Values that contradict each other stop here, with a sentence. */}}
{{- define "streamhold.check" -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- fail (printf "replicaCount is %d: it must be 0 or 1, because there is no leader election yet and two operators would write over each other." (int .Values.replicaCount)) -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false and serviceAccount.name is empty: name the service account the operator shall run under." -}}
{{- end -}}
{{- if eq (int .Values.operator.livenessPort) (int .Values.operator.metricsPort) -}}
{{- fail (printf "operator.livenessPort and operator.metricsPort are both %d: choose two ports, or metricsPort 0 for no metrics." (int .Values.operator.livenessPort)) -}}
{{- end -}}
{{- range .Values.operator.extraEnv -}}
{{- if hasPrefix "STREAMHOLD_" .name -}}
{{- fail (printf "operator.extraEnv sets %s: the chart sets the operator's settings as flags, which win over it; use the values of operator and namespaces." .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
