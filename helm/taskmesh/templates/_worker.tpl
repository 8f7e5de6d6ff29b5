{{- /* The container that runs a pool: call with (list root pool). No preStop: SIGTERM is the drain. */}}
{{- define "taskmesh.workerContainer" -}}
{{- $root := index . 0 -}}
{{- $of := index . 1 -}}
name: worker
image: {{ include "taskmesh.image" (list $root $of.image) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
command: [taskmesh]
args:
  - worker
  {{- range $of.modules }}
  - {{ . | quote }}
  {{- end }}
  {{- if $root.Values.hub.enabled }}
  - --address={{ include "taskmesh.hubPodAddress" $root }}
  {{- else }}
  - --address={{ $root.Values.externalHub.address }}
  {{- end }}
  - --name=$(POD_NAME)
  - {{ printf "--queues=%s" (join "," $of.queues) | quote }}
  {{- with $of.tags }}
  - {{ printf "--tags=%s" (join "," .) | quote }}
  {{- end }}
  - --grace={{ $of.drain.timeoutSeconds }}
  - --keys=/etc/taskmesh/keys
  {{- include "taskmesh.httpArguments" (list $root "worker") | nindent 2 }}
  - --config=/etc/taskmesh/config/taskmesh.toml
  - --json
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- if $of.concurrency }}
  - {name: TASKMESH_CONCURRENCY, value: {{ $of.concurrency | quote }}}
  {{- else }}
  - name: TASKMESH_CONCURRENCY  # rounded up; a process cannot see it by itself, it sees the node's CPUs
    valueFrom: {resourceFieldRef: {containerName: worker, resource: limits.cpu}}
  {{- end }}
  - {name: HOME, value: /scratch}
  - {name: TMPDIR, value: /scratch}
  {{- with $of.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $of.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if include "taskmesh.httpOpen" (list $root "worker") }}
ports:
  - {name: http, containerPort: {{ $root.Values.http.port }}, protocol: TCP}
{{- end }}
startupProbe:
  {{- include "taskmesh.probe" (list $root "worker" "startup" $of.probes.startup) | nindent 2 }}
livenessProbe:
  {{- include "taskmesh.probe" (list $root "worker" "live" $of.probes.liveness) | nindent 2 }}
readinessProbe:
  {{- include "taskmesh.probe" (list $root "worker" "ready" $of.probes.readiness) | nindent 2 }}
resources:
  {{- $resources := deepCopy $of.resources }}
  {{- if $of.gpu.count }}
  {{- $limits := default dict $resources.limits }}
  {{- $_ := set $limits $of.gpu.resourceName (int $of.gpu.count) }}
  {{- $_ := set $resources "limits" $limits }}
  {{- end }}
  {{- toYaml $resources | nindent 2 }}
securityContext:
  {{- toYaml (default $root.Values.securityContext $of.securityContext) | nindent 2 }}
{{- if $of.tasksConfigMap }}
workingDir: /tasks
{{- end }}
volumeMounts:
  - {name: keys, mountPath: /etc/taskmesh/keys, readOnly: true}
  - {name: config, mountPath: /etc/taskmesh/config, readOnly: true}
  - {name: scratch, mountPath: /scratch}
  {{- if $of.tasksConfigMap }}
  - {name: tasks, mountPath: /tasks, readOnly: true}
  {{- end }}
  {{- if include "taskmesh.httpOpen" (list $root "worker") }}
  - {name: http-token, mountPath: /etc/taskmesh/http, readOnly: true}
  {{- end }}
  {{- with $of.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
