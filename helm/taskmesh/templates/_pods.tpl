{{- /* Parts that pods of all roles share. */}}
{{- define "taskmesh.keysSecret" -}}
{{- $root := index . 0 -}}
{{- default $root.Values.keys.existingSecret (index $root.Values.keys (index . 1)).existingSecret }}
{{- end }}

{{- /* The volume with a role's keys, and no other's: call with (list root role). 0440 and fsGroup: the process reads, cannot write. */}}
{{- define "taskmesh.keysVolume" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $authorized := $root.Values.keys.authorized -}}
name: keys
projected:
  defaultMode: 0440
  sources:
    - secret:
        name: {{ include "taskmesh.keysSecret" . | quote }}
        items:
          - {key: hub.public, path: hub.public}
          - {key: {{ $role }}.secret, path: {{ $role }}.secret}
          {{- if and $root.Values.keys.signed (ne $role "hub") }}
          - {key: mesh.secret, path: mesh.secret}
          {{- end }}
    {{- if and (eq $role "hub") $authorized.existingSecret }}
    - secret: {name: {{ $authorized.existingSecret | quote }}}
    {{- else if eq $role "hub" }}
    - secret:
        name: {{ include "taskmesh.keysSecret" . | quote }}
        optional: true  # who is taken out of the Secret is let in no more; else the former files would stay, and no other pod start
        items:
          {{- range $who := list "client" "worker" "operator" }}
          {{- range get $authorized $who }}
          - {key: authorized.{{ $who }}.{{ . }}.public, path: authorized/{{ $who }}/{{ . }}.public}
          {{- end }}
          {{- end }}
    {{- end }}
{{- end }}

{{- define "taskmesh.configVolume" -}}
name: config
configMap:
  name: {{ include "taskmesh.fullname" . | quote }}
{{- end }}

{{- define "taskmesh.tokenVolume" -}}
name: http-token
secret:
  secretName: {{ .Values.http.existingSecret | quote }}
  defaultMode: 0440
  items:
    - {key: {{ .Values.http.tokenKey | quote }}, path: token}
{{- end }}

{{- /* Where the hub's journal is: "file", "secret" (that of a Redis), "config" (a Redis that the settings name), or nothing. */}}
{{- define "taskmesh.journalPlace" -}}
{{- $settings := default dict .Values.config.hub -}}
{{- if .Values.hub.journal.persistence.enabled }}file
{{- else if .Values.hub.journal.existingSecret }}secret
{{- else if or $settings.journal $settings.journal_file }}config
{{- end }}
{{- end }}

{{- define "taskmesh.journalClaim" -}}
{{- default (printf "%s-hub-journal" (include "taskmesh.fullname" .)) .Values.hub.journal.persistence.existingClaim }}
{{- end }}

{{- /* The hub's arguments for it. The file is in a volume's root, but with a name: a new volume may have a lost+found. */}}
{{- define "taskmesh.journalArguments" -}}
{{- $place := include "taskmesh.journalPlace" . -}}
{{- if eq $place "file" }}
- --journal=/var/lib/taskmesh/tasks.journal
{{- else if eq $place "secret" }}
- --journal-file=/etc/taskmesh/journal/url
{{- end }}
{{- if .Values.hub.journal.strict }}
- --strict
{{- end }}
{{- end }}

{{- define "taskmesh.journalMount" -}}
{{- $place := include "taskmesh.journalPlace" . -}}
{{- if eq $place "file" }}
- {name: journal, mountPath: /var/lib/taskmesh}
{{- else if eq $place "secret" }}
- {name: journal, mountPath: /etc/taskmesh/journal, readOnly: true}
{{- end }}
{{- end }}

{{- define "taskmesh.journalVolume" -}}
{{- $place := include "taskmesh.journalPlace" . -}}
{{- if eq $place "file" }}
- name: journal
  persistentVolumeClaim: {claimName: {{ include "taskmesh.journalClaim" . | quote }}}
{{- else if eq $place "secret" }}
- name: journal
  secret:
    secretName: {{ .Values.hub.journal.existingSecret | quote }}
    defaultMode: 0440
    items:
      - {key: {{ .Values.hub.journal.urlKey | quote }}, path: url}
{{- end }}
{{- end }}

{{- /* What every pod says: call with (list root podSecurityContext). None has a token of the cluster's API. */}}
{{- define "taskmesh.podHead" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ include "taskmesh.serviceAccount" $root | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml (default $root.Values.podSecurityContext (index . 1)) | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Where a pod may run and how long it has to end: call with the values of the hub, a pool or the test. */}}
{{- define "taskmesh.scheduling" -}}
{{- with .terminationGracePeriodSeconds }}
terminationGracePeriodSeconds: {{ int . }}
{{- end }}
{{- range $key := list "priorityClassName" "runtimeClassName" "nodeSelector" "affinity" "tolerations" "topologySpreadConstraints" }}
{{- with get $ $key }}
{{ toYaml (dict $key .) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The HTTP port's arguments: call with (list root component). */}}
{{- define "taskmesh.httpArguments" -}}
{{- $root := index . 0 -}}
{{- if include "taskmesh.httpOpen" . -}}
- --http={{ $root.Values.hub.bindHost }}:{{ $root.Values.http.port }}
- --http-token-file=/etc/taskmesh/http/token
{{- else -}}
- --http=127.0.0.1:{{ $root.Values.http.port }}
{{- end }}
{{- end }}

{{- /* One probe: call with (list root component verb timing). Over HTTP where the port is open, else the command asks on loopback. */}}
{{- define "taskmesh.probe" -}}
{{- $root := index . 0 -}}
{{- $verb := index . 2 -}}
{{- if include "taskmesh.httpOpen" (list $root (index . 1)) -}}
httpGet:
  path: /{{ $verb }}z
  port: http
{{- else -}}
exec:
  command: [taskmesh, health, {{ $verb }}, --http, "127.0.0.1:{{ $root.Values.http.port }}"]
{{- end }}
{{ toYaml (index . 3) }}
{{- end }}
