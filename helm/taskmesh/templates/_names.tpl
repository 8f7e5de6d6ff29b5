{{- /* Names, labels and addresses. Names leave room for a pool's name and the suffixes of pods. */}}
{{- define "taskmesh.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 30 | trimSuffix "-" }}
{{- end }}

{{- define "taskmesh.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if .Values.fullnameOverride }}
{{- include "taskmesh.short" .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- include "taskmesh.short" .Release.Name }}
{{- else }}
{{- include "taskmesh.short" (printf "%s-%s" .Release.Name $name) }}
{{- end }}
{{- end }}

{{- /* A name of at most 30 characters; of a longer one the end is a hash, or two releases would share objects. */}}
{{- define "taskmesh.short" -}}
{{- if gt (len .) 30 }}
{{- printf "%s-%s" (trunc 23 . | trimSuffix "-") (sha256sum . | trunc 6) }}
{{- else }}
{{- . | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* What a selector matches: never anything that an upgrade changes. Call with (list root component). */}}
{{- define "taskmesh.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "taskmesh.name" $root | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Call with (list root component), and further labels. */}}
{{- define "taskmesh.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := include "taskmesh.selector" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- range concat (list $root.Values.commonLabels) (slice . 2) }}{{ $_ := include "taskmesh.overlay" (list $labels .) }}{{ end -}}
{{ toYaml $labels }}
{{- end }}

{{- /* Of pods: no version, since a new chart that changes nothing about a pod is no reason to replace it. */}}
{{- define "taskmesh.podLabels" -}}
{{- $labels := include "taskmesh.selector" . | fromYaml -}}
{{- range concat (list (index . 0).Values.commonLabels) (slice . 2) }}{{ $_ := include "taskmesh.overlay" (list $labels .) }}{{ end -}}
{{ toYaml $labels }}
{{- end }}

{{- /* Call with (list root annotations). */}}
{{- define "taskmesh.podAnnotations" -}}
{{- toYaml (merge (dict "checksum/config" (toJson (index . 0).Values.config | sha256sum)) (index . 1)) }}
{{- end }}

{{- define "taskmesh.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "taskmesh.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* Call with (list root image); the image may be one of a pool, empty parts are the chart's. */}}
{{- define "taskmesh.image" -}}
{{- $root := index . 0 -}}
{{- $own := index . 1 -}}
{{- $repository := default $root.Values.image.repository $own.repository -}}
{{- $digest := $own.digest -}}
{{- if not (or $own.digest $own.tag) }}{{ $digest = $root.Values.image.digest }}{{ end -}}
{{- if $digest -}}
{{ $repository }}@{{ $digest }}
{{- else -}}
{{ $repository }}:{{ coalesce $own.tag $root.Values.image.tag $root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* Where pools find the hub: the pod's own address, since lanes are on many ports and no Service lists them. */}}
{{- define "taskmesh.hubPodAddress" -}}
tcp://{{ include "taskmesh.fullname" . }}-hub-pods.{{ .Release.Namespace }}.svc:{{ .Values.hub.port }}
{{- end }}

{{- /* Where clients find it. */}}
{{- define "taskmesh.gateway" -}}
{{- if .Values.hub.enabled -}}
tcp://{{ include "taskmesh.fullname" . }}-hub.{{ .Release.Namespace }}.svc:{{ .Values.hub.port }}
{{- else -}}
{{ .Values.externalHub.address }}
{{- end }}
{{- end }}

{{- /* Whether there is an HTTP port that others can reach: call with (list root component); "true" or nothing. */}}
{{- define "taskmesh.httpOpen" -}}
{{- $root := index . 0 -}}
{{- if and $root.Values.http.existingSecret (or (eq (index . 1) "hub") $root.Values.metrics.workers.enabled) }}true{{ end }}
{{- end }}
