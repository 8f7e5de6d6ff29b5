{{- /* Lays one map over another, into the first; unlike sprig's merge, false, 0 and "" count as said. */}}
{{- define "taskmesh.overlay" -}}
{{- $under := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- $below := get $under $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $below) (not (has $key (list "resources" "strategy" "nodeSelector" "affinity"))) -}}
{{- $_ := include "taskmesh.overlay" (list $below $value) -}}
{{- else -}}
{{- $_ := set $under $key $value -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* The enabled pools by name, as JSON: defaults, overlaid and checked. */}}
{{- define "taskmesh.pools" -}}
{{- $pools := dict -}}
{{- $root := . -}}
{{- range $name, $own := .Values.workerPools -}}
{{- $pool := deepCopy $root.Values.workerDefaults -}}
{{- $_ := include "taskmesh.overlay" (list $pool (default dict $own)) -}}
{{- if $pool.enabled -}}
{{- include "taskmesh.checkPool" (list $root $name $pool) -}}
{{- $_ := set $pools $name $pool -}}
{{- end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end }}
