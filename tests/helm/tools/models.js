// Reads {kind: [object, ...]} of custom resources, writes a list of "kind/name: what is wrong" as JSON.
import { readFileSync } from "node:fs";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { TriggerAuthentication } from "@kubernetes-models/keda/keda.sh/v1alpha1/TriggerAuthentication";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";

const models = { ScaledObject, TriggerAuthentication, PodMonitor };
const wrong = [];
for (const [kind, objects] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  for (const object of objects) {
    try {
      new models[kind](object).validate();
    } catch (error) {
      wrong.push(`${kind}/${object.metadata.name}: ${error.message}`);
    }
  }
}
console.log(JSON.stringify(wrong));
