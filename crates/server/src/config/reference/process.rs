//! Keys of the process, its operator, its callers and the order of requests.

use super::Unset::{Is, Means};
use super::{Key, key};

pub(super) const PROCESS: &[Key] = &[
    key(
        "listen",
        "address and port",
        Is("127.0.0.1:8080"),
        "Where to listen.",
    ),
    key(
        "data_dir",
        "path",
        Is("./tollgate-data"),
        "Where files are kept, from the working directory.",
    ),
    key(
        "server.max_body",
        "size, 1KiB..=1GiB",
        Is("32MiB"),
        "The longest request body; a longer one gets 413.",
    ),
    key(
        "server.max_bodies",
        "size, 1MiB..=1024GiB",
        Means("256MiB, or one of `server.max_body` where that is more"),
        "Memory for the bodies of requests, each kept until an engine has begun to answer. One of \
         more than 64 KiB is not read before there is room for it; if there is none within \
         `server.read_timeout` it gets 503 and the reason `body_room`.",
    ),
    key(
        "server.max_connections",
        "number, 1..=1000000",
        Is("4096"),
        "Connections open at once. Those past it wait, in the system's own line, until one closes; \
         a health probe does, too.",
    ),
    key(
        "server.drain",
        "duration, 1s..=1h",
        Is("60s"),
        "How long running streams may go on after SIGTERM.",
    ),
    key(
        "server.read_timeout",
        "duration, 1s..=10m",
        Is("30s"),
        "How long a request's head may take to arrive, and then its body; a connection that is \
         idle for as long is closed.",
    ),
    key(
        "server.threads",
        "number, 1..=1024",
        Means("one for each core; for each four where all models are computed here"),
        "Threads that carry requests; engines of this process have threads of their own. Fewer \
         take less of a CPU for each request, and more get on better beside other programs.",
    ),
    key(
        "ledger.on_failure",
        "refuse or serve",
        Is("refuse"),
        "What happens while the disk takes no records: new work is refused with 503 and the reason \
         `ledger`, or it is served, and records that memory has no room for go to the log.",
    ),
    key(
        "ledger.sync",
        "duration, 2ms..=10s",
        Is("50ms"),
        "Within which time the end of a request is on disk. Shorter means more syncs.",
    ),
    key(
        "ledger.segment",
        "size, 1MiB..=1GiB",
        Is("64MiB"),
        "Size of a segment of the journal in `data_dir`, after which the next is begun.",
    ),
    key(
        "metrics.expose",
        "loopback or any",
        Is("loopback"),
        "Which peers may read `/metrics`, which names tenants and models.",
    ),
];

pub(super) const ADMIN: &[Key] = &[
    key(
        "admission.trace",
        "`on` or `off`",
        Is("on"),
        "Whether each decision of a model with an `slo` is written to `data_dir/admission`, with \
         what was known, promised and came; `tollgate admission report` and `export` read it.",
    ),
    key(
        "admission.trace_max",
        "size, 1MiB..=64GiB",
        Is("64MiB"),
        "How long all of that may be; the oldest goes first.",
    ),
    key(
        "admission.state",
        "`on` or `off`",
        Is("on"),
        "Whether what was learned of a model's latency is kept there too, and taken on at the next \
         start where engine, model and machine are the same.",
    ),
    key(
        "admin.keys[].name",
        "1 to 64 of `A-Za-z0-9._-`",
        Is("admin"),
        "What the audit calls whoever uses the key.",
    ),
    key(
        "admin.keys[].env",
        "name of a variable",
        Means("`sha256` is used"),
        "The environment variable that holds the key.",
    ),
    key(
        "admin.keys[].sha256",
        "64 hexadecimal digits",
        Means("`env` is used"),
        "The key's SHA-256.",
    ),
    key(
        "admin.listen",
        "address and port",
        Means("off"),
        "Where `GET /admin/v1/queue` is answered: who waits for each model, in which place and for \
         how long, and what each replica's window holds. Without `admin.keys` it asks for no key, answers \
         nothing else, and is for this computer only. With them every request needs one of them, and \
         `/admin/v1` makes and revokes keys, and sums usage; `/admin/v1/openapi.json` describes it.",
    ),
];

pub(super) const IDENTITY: &[Key] = &[
    key(
        "identity.anonymous",
        "deny or allow",
        Is("deny"),
        "Whether callers without a key are the tenant `anonymous` or are refused.",
    ),
    key(
        "identity.trust_tenant_header",
        "true or false",
        Is("false"),
        "Whether trusted peers may name the tenant in `X-Tenant-ID`.",
    ),
    key(
        "identity.trusted_peers",
        "list of networks",
        Is("[127.0.0.0/8, \"::1/128\"]"),
        "The peers that may, if anyone may.",
    ),
];

pub(super) const FAIRNESS: &[Key] = &[
    key(
        "fairness.policy",
        "vtc or drr or fifo",
        Is("vtc"),
        "Who is next: the tenant that has had the least service; each in turn for a quantum; or in \
         the order of arrival, which lets a flooder starve the others.",
    ),
    key(
        "fairness.quantum",
        "number, 1..=1000000",
        Means("1024"),
        "Service that a tenant of weight 1 is granted per turn; only for `policy: drr`.",
    ),
    key(
        "fairness.input_weight",
        "number, 0..=1000",
        Is("1"),
        "What a computed prompt token counts as service.",
    ),
    key(
        "fairness.output_weight",
        "number, 0..=1000",
        Is("2"),
        "What a generated token counts; not both weights are 0.",
    ),
    key(
        "fairness.cached_weight",
        "percent, 0%..=100%",
        Is("0%"),
        "What a prompt token counts whose KV was reused, against one that is computed: as service \
         and against `tpm`.",
    ),
    key(
        "fairness.floors_max",
        "percent, 0%..=1000%",
        Is("60%"),
        "What the floors of the tenants of one model may add up to; more than 100% promises more \
         than there is.",
    ),
];
