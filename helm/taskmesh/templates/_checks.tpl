{{- /* Values that cannot work are refused before anything is installed; the text says what to do. */}}
{{- define "taskmesh.check" -}}
{{- /* The newest value: replace it in each version of the chart that adds one. */}}
{{- if not (hasKey .Values.hub "journal") -}}
{{- fail "these values are of an older version of the chart: `helm upgrade --reuse-values` keeps them as a whole. Take --reset-then-reuse-values (Helm 3.14 or newer), or give your values anew with -f" -}}
{{- end -}}
{{- range $role := list "hub" "worker" "client" -}}
{{- $needed := or (and (eq $role "hub") $.Values.hub.enabled) (and (eq $role "worker") $.Values.workerPools) (and (eq $role "client") $.Values.test.enabled) -}}
{{- if and $needed (not (include "taskmesh.keysSecret" (list $ $role))) -}}
{{- fail (printf "the %s needs keys: make them with `taskmesh keys new`, put them into a Secret (docs/kubernetes.md) and name it with --set keys.existingSecret=NAME" $role) -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.hub.enabled) (not .Values.externalHub.address) -}}
{{- fail "hub.enabled=false needs externalHub.address, like tcp://hub.example.org:5550" -}}
{{- end -}}
{{- if and .Values.hub.enabled .Values.externalHub.address -}}
{{- fail "externalHub.address is for hub.enabled=false: pools join one hub, this release's own or another" -}}
{{- end -}}
{{- if and .Values.hub.enabled (eq .Values.keys.authorized.existingSecret (include "taskmesh.keysSecret" (list . "hub"))) -}}
{{- fail "keys.authorized.existingSecret has to be a Secret of its own, of public keys alone: the hub gets all that is in it" -}}
{{- end -}}
{{- $settings := default dict .Values.config.hub -}}
{{- include "taskmesh.checkJournal" (list . $settings) -}}
{{- $limit := include "taskmesh.bytes" (default dict .Values.hub.resources.limits).memory | float64 -}}
{{- $most := include "taskmesh.bytes" $settings.max_bytes | float64 -}}
{{- if and .Values.hub.enabled (gt $limit 0.0) (gt $most $limit) -}}
{{- fail (printf "config.hub.max_bytes (%v) is above hub.resources.limits.memory (%v), the hub would not start: raise the limit to twice of max_bytes, or leave max_bytes out, which takes half of the limit" $settings.max_bytes .Values.hub.resources.limits.memory) -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled (not (or .Values.hub.enabled .Values.metrics.workers.enabled)) -}}
{{- fail "metrics.podMonitor.enabled has nothing to ask: it needs hub.enabled or metrics.workers.enabled" -}}
{{- end -}}
{{- include "taskmesh.checkLabels" (list "commonLabels" .Values.commonLabels) -}}
{{- if and .Values.metrics.podMonitor.enabled (not .Values.http.existingSecret) -}}
{{- fail "metrics.podMonitor.enabled needs http.existingSecret: without a token the HTTP port listens on loopback only" -}}
{{- end -}}
{{- if and .Values.metrics.workers.enabled (not .Values.http.existingSecret) -}}
{{- fail "metrics.workers.enabled needs http.existingSecret: without a token the HTTP port listens on loopback only" -}}
{{- end -}}
{{- if le (int .Values.hub.lanes.last) (int .Values.hub.lanes.first) -}}
{{- fail "hub.lanes.last has to be above hub.lanes.first: every pool needs a port of its own" -}}
{{- end -}}
{{- range $port := list .Values.hub.port (add 1 .Values.hub.port) (add 2 .Values.hub.port) -}}
{{- if and (ge (int $port) (int $.Values.hub.lanes.first)) (le (int $port) (int $.Values.hub.lanes.last)) -}}
{{- fail (printf "hub.lanes must not contain port %d: gateway, collector and control have hub.port and the next two" (int $port)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.test.enabled (not .Values.test.queue) (not (include "taskmesh.pools" . | fromJson)) -}}
{{- fail "test.enabled needs a pool or test.queue: `helm test` runs a task on one" -}}
{{- end -}}
{{- end }}

{{- /* Of the hub's journal: call with (list root config.hub). */}}
{{- define "taskmesh.checkJournal" -}}
{{- $root := index . 0 -}}
{{- $settings := index . 1 -}}
{{- $journal := $root.Values.hub.journal -}}
{{- $persistence := $journal.persistence -}}
{{- $configured := toString (default "" $settings.journal) -}}
{{- if and (not $root.Values.hub.enabled) (or $persistence.enabled $journal.existingSecret $journal.strict) -}}
{{- fail "hub.journal is for hub.enabled=true: the journal belongs to the hub" -}}
{{- end -}}
{{- if and $persistence.enabled $journal.existingSecret -}}
{{- fail "hub.journal.persistence.enabled and hub.journal.existingSecret contradict each other: the journal is in a file on a volume or in Redis, so leave one of them out" -}}
{{- end -}}
{{- if and (or $persistence.enabled $journal.existingSecret) (or $configured $settings.journal_file) -}}
{{- fail "hub.journal and config.hub.journal contradict each other: give the journal's place once" -}}
{{- end -}}
{{- if contains "@" $configured -}}
{{- fail "config.hub.journal has a password, which everybody could read in the ConfigMap: put the URL into a Secret, and name that with hub.journal.existingSecret" -}}
{{- end -}}
{{- if and $configured (not (contains "://" $configured)) -}}
{{- fail "config.hub.journal is a file that would end with the hub's pod: use hub.journal.persistence.enabled=true, which puts one on a PersistentVolume" -}}
{{- end -}}
{{- if and $persistence.existingClaim (not $persistence.enabled) -}}
{{- fail "hub.journal.persistence.existingClaim needs hub.journal.persistence.enabled=true: without it nothing is written there" -}}
{{- end -}}
{{- if and (or $journal.strict $settings.strict) (not (include "taskmesh.journalPlace" $root)) -}}
{{- fail "strict is about a journal, and there is none: set hub.journal.persistence.enabled=true, or name the Secret with the URL of a Redis with hub.journal.existingSecret" -}}
{{- end -}}
{{- if and $persistence.enabled (not $persistence.existingClaim) (or (has "ReadWriteMany" $persistence.accessModes) (has "ReadOnlyMany" $persistence.accessModes)) -}}
{{- fail "hub.journal.persistence.accessModes: one hub writes the journal, and its file cannot be on a file system that nodes share: take ReadWriteOnce or ReadWriteOncePod; for a journal that no volume holds back, keep it in Redis (hub.journal.existingSecret)" -}}
{{- end -}}
{{- end }}

{{- /* Labels that selectors match are the chart's: call with (list where labels). */}}
{{- define "taskmesh.checkLabels" -}}
{{- range $key := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "taskmesh/pool" -}}
{{- if hasKey (index $ 1) $key -}}
{{- fail (printf "%s: %s is the chart's own, by which objects find their pods: take another label" (index $ 0) $key) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* A size of Kubernetes (2Gi) or of taskmesh (2GiB) in bytes; 0 for none. */}}
{{- define "taskmesh.bytes" -}}
{{- $text := ternary (lower (toString .)) "" (kindIs "string" .) | trimSuffix "b" -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- $factors := dict "" 1.0 "k" 1e3 "ki" 1024.0 "m" 1e6 "mi" 1048576.0 "g" 1e9 "gi" 1073741824.0 "t" 1e12 "ti" 1099511627776.0 -}}
{{- $factor := get $factors (trim (trimPrefix $number $text)) -}}
{{- if kindIs "string" . }}{{ mulf (float64 $number) (default 0.0 $factor) }}{{ else }}{{ float64 (default 0 .) }}{{ end -}}
{{- end }}

{{- define "taskmesh.checkPool" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $pool := index . 2 -}}
{{- $scaling := $pool.autoscaling -}}
{{- if le (int $pool.terminationGracePeriodSeconds) (add 10 $pool.drain.timeoutSeconds | int) -}}
{{- fail (printf "workerPools.%s: terminationGracePeriodSeconds (%d) has to be more than drain.timeoutSeconds + 10 (%d): Kubernetes would kill a pool that drains" $name (int $pool.terminationGracePeriodSeconds) (add 10 $pool.drain.timeoutSeconds | int)) -}}
{{- end -}}
{{- include "taskmesh.checkLabels" (list (printf "workerPools.%s.podLabels" $name) $pool.podLabels) -}}
{{- if not $pool.queues -}}
{{- fail (printf "workerPools.%s: queues is empty: a pool without a queue gets no task" $name) -}}
{{- end -}}
{{- if ne $scaling.type "none" -}}
{{- if hasKey (default dict (index $root.Values.workerPools $name)) "replicas" -}}
{{- fail (printf "workerPools.%s: replicas and autoscaling.type=%s contradict each other: leave replicas out" $name $scaling.type) -}}
{{- end -}}
{{- if lt (int $scaling.max) (int $scaling.min) -}}
{{- fail (printf "workerPools.%s: autoscaling.max is below autoscaling.min" $name) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $scaling.type "hpa") (lt (int $scaling.min) 1) -}}
{{- fail (printf "workerPools.%s: autoscaling.min=0 needs autoscaling.type=keda: without a pod there is nothing that an HPA could measure" $name) -}}
{{- end -}}
{{- if eq $scaling.type "keda" -}}
{{- if not $root.Values.hub.enabled -}}
{{- fail (printf "workerPools.%s: autoscaling.type=keda asks this release's hub: it needs hub.enabled=true" $name) -}}
{{- end -}}
{{- if not $root.Values.http.existingSecret -}}
{{- fail (printf "workerPools.%s: autoscaling.type=keda needs http.existingSecret: without a token the hub's HTTP port listens on loopback only" $name) -}}
{{- end -}}
{{- end -}}
{{- end }}
