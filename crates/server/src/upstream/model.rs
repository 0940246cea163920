//! A model whose engines run in other processes, and each of those engines.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::sync::Notify;
use tollgate_policy::density::Density;
use tollgate_policy::ids::ReplicaId;
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Usage;
use tollgate_wire::PromptSize;

use super::pool::Pool;
use crate::config::RemoteConfig;

/// Tokens that a picture, a sound or a file is taken for until the engine has counted: about what
/// vision models make of a picture of ordinary size.
const MEDIA_TOKENS: u64 = 576;

/// The context of a model of which nobody said it: more than any has, since its engine knows.
const CONTEXT_UNKNOWN: Tokens = Tokens::new(10_000_000);

/// One engine in another process.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) id: ReplicaId,
    pub(crate) pool: Pool,
    /// The policy wants it to be tried.
    pub(crate) start: Notify,
}

/// A model, as far as it is known without seeing it.
#[derive(Debug)]
pub(crate) struct RemoteModel {
    pub(crate) config: RemoteConfig,
    /// Its name there.
    pub(crate) name: String,
    /// Its context, where the configuration says it.
    pub(crate) context: Option<Tokens>,
    pub(crate) replicas: Vec<std::sync::Arc<Upstream>>,
    /// What tenants' salts are made with.
    salt_key: [u8; 32],
    densities: Mutex<Densities>,
}

/// Bytes per token, of prompts and of answers.
#[derive(Clone, Copy, Debug, Default)]
struct Densities {
    prompt: Density,
    output: Density,
}

impl RemoteModel {
    pub(crate) fn new(
        config: RemoteConfig,
        name: String,
        context: Option<Tokens>,
        replicas: Vec<std::sync::Arc<Upstream>>,
        salt_key: [u8; 32],
    ) -> Self {
        Self {
            config,
            name,
            context,
            replicas,
            salt_key,
            densities: Mutex::default(),
        }
    }

    /// The context that the policy fits requests into.
    pub(crate) fn policy_context(&self) -> Tokens {
        self.context.unwrap_or(CONTEXT_UNKNOWN)
    }

    /// The replica of this number, if it is one of this model's.
    pub(crate) fn replica(&self, id: ReplicaId) -> Option<&std::sync::Arc<Upstream>> {
        self.replicas.iter().find(|replica| replica.id == id)
    }

    /// The tokens that a prompt is likely to have.
    pub(crate) fn reckon_prompt(&self, size: PromptSize) -> Tokens {
        let text = self.densities().prompt.reckon(size.text_bytes);
        let media = Tokens::new(size.media.saturating_mul(MEDIA_TOKENS));
        (text + media + Tokens::new(size.tokens)).max(Tokens::new(1))
    }

    /// The tokens that an answer is likely to have: each delta is one at least.
    pub(crate) fn reckon_output(&self, text_bytes: u64, deltas: u64) -> Tokens {
        let text = self.densities().output.reckon(text_bytes);
        text.max(Tokens::new(deltas))
    }

    /// An engine has counted.
    pub(crate) fn learn(&self, size: PromptSize, text_bytes: u64, counted: Usage) {
        let mut densities = self
            .densities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // What pictures are in tokens would be taken for what text is.
        if size.media == 0 && size.tokens == 0 {
            densities.prompt.learn(size.text_bytes, counted.prompt);
        }
        densities.output.learn(text_bytes, counted.output);
    }

    /// What keeps a tenant's prefixes its own: the same for all its requests, and for no other's.
    pub(crate) fn salt(&self, tenant: &str) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.salt_key) else {
            return String::from("-"); // Not reached: HMAC takes keys of any length.
        };
        mac.update(self.name.as_bytes());
        mac.update(&[0]);
        mac.update(tenant.as_bytes());
        let digest = mac.finalize().into_bytes();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The head of a request to one of its replicas, but for what is the caller's.
    pub(crate) fn head(&self, upstream: &Upstream, method: &str, path: &str) -> Vec<u8> {
        let address = upstream.pool.address();
        let mut head = Vec::with_capacity(512);
        for part in [method, " ", &address.base, path, " HTTP/1.1\r\nhost: "] {
            head.extend_from_slice(part.as_bytes());
        }
        head.extend_from_slice(address.host_header().as_bytes());
        head.extend_from_slice(b"\r\n");
        if let Some(key) = &self.config.key {
            head.extend_from_slice(b"authorization: Bearer ");
            head.extend_from_slice(key.reveal().as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head
    }

    /// An answer of an engine that refused, with the names that the caller knows.
    pub(crate) fn renamed(&self, body: Bytes, asked: &str) -> Bytes {
        if self.name == asked || memchr::memmem::find(&body, self.name.as_bytes()).is_none() {
            return body;
        }
        match std::str::from_utf8(&body) {
            Ok(text) => Bytes::from(text.replace(&self.name, asked)),
            Err(_) => body,
        }
    }

    fn densities(&self) -> Densities {
        *self
            .densities
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RemoteKind;

    fn model(key: u8) -> RemoteModel {
        let config = RemoteConfig::new(RemoteKind::Vllm);
        RemoteModel::new(config, "qwen".into(), None, Vec::new(), [key; 32])
    }

    #[test]
    fn a_salt_is_a_tenants_own_and_stays_the_same() {
        let model = model(1);
        assert_eq!(model.salt("a"), model.salt("a"));
        assert_ne!(model.salt("a"), model.salt("b"));
        assert_ne!(model.salt("a"), self::model(2).salt("a"));
        assert_eq!(model.salt("a").len(), 64);
    }

    #[test]
    fn a_picture_costs_the_same_whatever_its_size() {
        let size = |text_bytes, media| PromptSize {
            text_bytes,
            media,
            tokens: 0,
        };
        assert_eq!(model(1).reckon_prompt(size(40, 1)), Tokens::new(10 + 576));
        assert_eq!(model(1).reckon_prompt(size(0, 0)), Tokens::new(1));
    }

    #[test]
    fn the_name_there_is_not_told_here() {
        let renamed = model(1).renamed(Bytes::from_static(b"no `qwen` here"), "fast");
        assert_eq!(renamed, "no `fast` here");
    }
}
