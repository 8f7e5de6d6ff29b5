"""What cannot work is refused before anything is installed, and the message says the cure."""

import pytest

from tests.helm.rendering import MINIMAL, chart, laid_over, rendered, template

TOKEN = {"http": {"existingSecret": "tokens"}}
ELSEWHERE = {"hub": {"enabled": False}, "externalHub": {"address": "tcp://a:1"}}


def pool(**values):
    return {"workerPools": {"default": values}}


def journal(**values):
    return {"hub": {"journal": values}}


REFUSED = {
    "no keys": ({"keys": {"existingSecret": ""}}, "taskmesh keys new"),
    "public keys among secret ones": (
        {"keys": {"authorized": {"existingSecret": "mesh-keys"}}},
        "a Secret of its own, of public keys alone",
    ),
    "hub without keys": (
        {"keys": {"existingSecret": "", "worker": {"existingSecret": "w"}}},
        "the hub needs keys",
    ),
    "no hub at all": ({"hub": {"enabled": False}}, "needs externalHub.address"),
    "two hubs": ({"externalHub": {"address": "tcp://a:1"}}, "is for hub.enabled=false"),
    "a journal without a hub": (
        {
            "hub": {"enabled": False, "journal": {"existingSecret": "s"}},
            "externalHub": {"address": "tcp://a:1"},
        },
        "is for hub.enabled=true",
    ),
    "a journal in two places": (
        journal(existingSecret="s", persistence={"enabled": True}),
        "so leave one of them out",
    ),
    "a journal in a file, and one in the configuration": (
        {**journal(persistence={"enabled": True}), "config": {"hub": {"journal": "redis://a:1/0"}}},
        "give the journal's place once",
    ),
    "a journal in a Secret, and one in the configuration": (
        {**journal(existingSecret="s"), "config": {"hub": {"journal_file": "/url"}}},
        "give the journal's place once",
    ),
    "a password in the configuration": (
        {"config": {"hub": {"journal": "redis://:secret@a:1/0"}}},
        "hub.journal.existingSecret",
    ),
    "a file that ends with its pod": (
        {"config": {"hub": {"journal": "/scratch/tasks.journal"}}},
        "use hub.journal.persistence.enabled=true",
    ),
    "strict without a journal": (journal(strict=True), "or name the Secret with the URL of a Redis"),
    "strict in the configuration without a journal": (
        {"config": {"hub": {"strict": True}}},
        "set hub.journal.persistence.enabled=true",
    ),
    "a claim that nothing is written to": (
        journal(persistence={"existingClaim": "mine"}),
        "needs hub.journal.persistence.enabled=true",
    ),
    "a volume that nodes share": (
        journal(persistence={"enabled": True, "accessModes": ["ReadWriteMany"]}),
        "take ReadWriteOnce or ReadWriteOncePod",
    ),
    "monitor without token": ({"metrics": {"podMonitor": {"enabled": True}}}, "needs http.existingSecret"),
    "open workers without token": ({"metrics": {"workers": {"enabled": True}}}, "needs http.existingSecret"),
    "keda without token": (pool(autoscaling={"type": "keda"}), "needs http.existingSecret"),
    "keda without hub": (
        {
            **TOKEN,
            **pool(autoscaling={"type": "keda"}),
            "hub": {"enabled": False},
            "externalHub": {"address": "tcp://a:1"},
        },
        "needs hub.enabled=true",
    ),
    "grace too short": (pool(drain={"timeoutSeconds": 80}), "more than drain.timeoutSeconds + 10"),
    "grace just too short": (
        pool(drain={"timeoutSeconds": 20}, terminationGracePeriodSeconds=30),
        "more than drain.timeoutSeconds + 10",
    ),
    "more bytes than memory": (
        {"config": {"hub": {"max_bytes": "4GiB"}}},
        "raise the limit to twice of max_bytes",
    ),
    "more bytes than memory, as a number": (
        {"config": {"hub": {"max_bytes": 3_000_000_000}}},
        "leave max_bytes out",
    ),
    "values of an older chart": ({"hub": {"journal": None}}, "--reset-then-reuse-values"),
    "a label that selectors match": (
        {"commonLabels": {"app.kubernetes.io/name": "foo"}},
        "is the chart's own",
    ),
    "a pool's label that selectors match": (
        pool(podLabels={"taskmesh/pool": "foo"}),
        "podLabels: taskmesh/pool is the chart's own",
    ),
    "a monitor without anything to ask": (
        {**ELSEWHERE, **TOKEN, "metrics": {"podMonitor": {"enabled": True}}},
        "has nothing to ask",
    ),
    "no queue": (pool(queues=[]), "queues is empty"),
    "replicas and autoscaler": (pool(replicas=3, autoscaling={"type": "hpa"}), "leave replicas out"),
    "max below min": (pool(autoscaling={"type": "hpa", "min": 5, "max": 2}), "max is below"),
    "hpa from zero": (pool(autoscaling={"type": "hpa", "min": 0}), "needs autoscaling.type=keda"),
    "lanes the wrong way round": ({"hub": {"lanes": {"first": 6000, "last": 5900}}}, "has to be above"),
    "lanes over the control port": (
        {"hub": {"lanes": {"first": 5552, "last": 5900}}},
        "must not contain port 5552",
    ),
    "a test without a pool": ({"workerPools": {"default": None}}, "needs a pool or test.queue"),
}
UNFIT = {
    "pool name with capitals": {"workerPools": {"GPU": {}}},
    "pool name with a dot": {"workerPools": {"a.b": {}}},
    "pool named hub": {"workerPools": {"hub": {}}},
    "two autoscalers": pool(autoscaling={"type": ["hpa", "keda"]}),
    "key of a pool misspelt": pool(concurency=3),
    "queue with a comma": pool(queues=["a,b"]),
    "port out of range": {"hub": {"port": 99999999}},
    "text for a number": pool(replicas="three"),
    "unknown section of the configuration": {"config": {"pools": {"grace": 3}}},
    "unknown key of the configuration": {"config": {"hub": {"leese": 3}}},
    "text for a number of the configuration": {"config": {"hub": {"lease": "20"}}},
    "a size that is none": {"config": {"hub": {"max_bytes": "4Gigs"}}},
    "number as a label": {"commonLabels": {"a": 1}},
    "list of addresses": {"externalHub": {"address": "tcp://a:1,tcp://b:1"}},
    "address without a port": {"externalHub": {"address": "tcp://hub"}},
    "a size of a volume that is none": journal(persistence={"size": "8 GB"}),
    "an access mode that is none": journal(persistence={"accessModes": ["ReadWrite"]}),
    "a volume without an access mode": journal(persistence={"accessModes": []}),
    "digest cut short": {"image": {"digest": "sha256:12"}},
}


@pytest.mark.parametrize("limit", ["16Gi", "9G", "", 10_000_000_000])
def test_as_many_bytes_as_there_is_memory_for_are_taken(limit):
    """8 GiB against the default 2Gi had the hub killed for ever."""
    limits = {"memory": limit} if limit else {"memory": None}
    values = {"config": {"hub": {"max_bytes": "8GiB"}}, "hub": {"resources": {"limits": limits}}}

    assert rendered(laid_over(MINIMAL, values))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_cure(name):
    values, cure = REFUSED[name]

    with pytest.raises(Exception, match=cure.replace("+", r"\+")):
        rendered(laid_over(MINIMAL, values))


@pytest.mark.parametrize(
    "name",
    [
        "no keys",
        "grace too short",
        "keda without token",
        "values of an older chart",
        "a journal in two places",
        "strict without a journal",
    ],
)
def test_helm_3_refuses_it_likewise(name):
    values, cure = REFUSED[name]

    outcome = template(laid_over(MINIMAL, values))

    assert outcome.returncode != 0
    assert cure in outcome.stderr


@pytest.mark.parametrize("name", UNFIT)
def test_the_schema_refuses(name):
    values = laid_over(MINIMAL, UNFIT[name])

    with pytest.raises(Exception, match="at '"):
        chart().validate_schema(values)
    assert template(values).returncode != 0
