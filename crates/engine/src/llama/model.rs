//! A model file: its weights, its vocabulary and its chat template.

use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::{LogOptions, json_schema_to_grammar, send_logs_to_tracing};
use tollgate_policy::engine::Config;
use tollgate_policy::units::{KvBlocks, KvBytes, Tokens};

use crate::backend::Open;
use crate::grammar;
use crate::job::Token;
use crate::llama::batches::ON_CPU;
use crate::llama::pooler;
use crate::llama::runner::Opener;
use crate::llama::sampler::grammar_sampler;
use crate::model::{
    CallCount, CallStyle, ChatMessage, GrammarError, Model, TemplateError, TokenizeError, ToolOffer,
};
use crate::template::{ChatTemplate, SpecialTokens};
use crate::tools;

/// llama.cpp's own state, of which a process has one. Its log goes to `tracing`.
static BACKEND: LazyLock<Result<LlamaBackend, String>> = LazyLock::new(|| {
    send_logs_to_tracing(LogOptions::default());
    LlamaBackend::init().map_err(|error| error.to_string())
});

/// Why a model file could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such file, or it can't be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// llama.cpp can't be used in this process.
    #[error("llama.cpp did not start: {0}")]
    Backend(String),
    /// llama.cpp does not take it.
    #[error("{} is not a model that llama.cpp can run ({why}); see its log", path.display())]
    Model {
        /// Which one.
        path: PathBuf,
        /// What llama.cpp said.
        why: String,
    },
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
}

impl Pooling {
    /// What a model file says, by llama.cpp's numbers (`llama_pooling_type` in llama.h). One that
    /// ranks makes no vectors.
    fn of_file(weights: &llama_cpp_2::model::LlamaModel, architecture: &str) -> Option<Self> {
        let kind = weights.meta_val_str(&format!("{architecture}.pooling_type"));
        match kind.ok()?.as_str() {
            "1" => Some(Self::Mean),
            "2" => Some(Self::First),
            "3" => Some(Self::Last),
            _ => None,
        }
    }
}

/// A loaded model file. The weights are mapped, not copied, and shared by all engines that run it.
pub struct LlamaModel {
    weights: llama_cpp_2::model::LlamaModel,
    facts: Facts,
    template: Result<ChatTemplate, TemplateError>,
    /// Held while a context is made: llama.cpp may adjust the model then.
    opening: Mutex<()>,
}

/// What was asked of llama.cpp once.
#[derive(Debug)]
struct Facts {
    name: String,
    context: Tokens,
    kv_bytes_per_token: KvBytes,
    vocabulary: u32,
    max_token_bytes: u32,
    /// Tokens that end a turn.
    ends: Vec<LlamaToken>,
    /// The token that starts every prompt, where the model wants one.
    bos: Option<LlamaToken>,
    /// How it makes one vector of a text, where it does.
    pooling: Option<Pooling>,
    /// Whether a token sees only those before it.
    causal: bool,
    /// Whether some of its attention looks back over a part of the text only.
    slides: bool,
}

impl fmt::Debug for LlamaModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlamaModel")
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

impl LlamaModel {
    /// Loads a GGUF file.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load(path: &Path) -> Result<Arc<Self>, LoadError> {
        Self::load_for(path, None)
    }

    /// Loads a GGUF file to make vectors with, pooled like this, where the file itself does not
    /// say so.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub fn load_for(path: &Path, pooling: Option<Pooling>) -> Result<Arc<Self>, LoadError> {
        // Opened here for its error: llama.cpp says only that something failed.
        if let Err(error) = std::fs::File::open(path) {
            return Err(LoadError::File {
                path: path.into(),
                error,
            });
        }
        let params = LlamaModelParams::default().with_use_mmap(true);
        let weights = llama_cpp_2::model::LlamaModel::load_from_file(backend()?, path, &params)
            .map_err(|error| LoadError::Model {
                path: path.into(),
                why: error.to_string(),
            })?;
        let mut facts = Facts::of(&weights, path);
        facts.pooling = pooling.or(facts.pooling);
        let template = compile(&weights);
        Ok(Arc::new(Self {
            weights,
            facts,
            template,
            opening: Mutex::new(()),
        }))
    }

    /// Whether a sequence can share another's KV from the start on: not where a model keeps a state
    /// in place of KV.
    pub fn shares_prefixes(&self) -> bool {
        !self.weights.is_recurrent() && !self.weights.is_hybrid()
    }

    /// Whether an engine with these bounds has a KV for each sequence: where its pool has room for
    /// each at its longest. Prefixes of it are then copied, so it should keep no more of them than
    /// it has sequences. Not where attention looks back over a part of a text only: of that,
    /// llama.cpp gives out no more than the end.
    pub fn has_lanes(&self, limits: &Config) -> bool {
        let room = KvBlocks::new(u64::from(limits.blocks)).slots().get();
        let needed = limits.request_tokens().get() * u64::from(limits.sequences);
        ON_CPU && self.shares_prefixes() && !self.facts.slides && needed <= room
    }

    /// What builds a backend on these weights, for an engine with these bounds; `threads` compute.
    pub fn backend(self: &Arc<Self>, limits: &Config, threads: NonZeroU32) -> Box<dyn Open> {
        if let Some(pooling) = self.facts.pooling {
            return Box::new(pooler::Opener {
                model: Arc::clone(self),
                pooling,
                limits: *limits,
                threads,
            });
        }
        Box::new(Opener {
            model: Arc::clone(self),
            limits: *limits,
            threads,
        })
    }

    pub(crate) fn weights(&self) -> &llama_cpp_2::model::LlamaModel {
        &self.weights
    }

    pub(crate) fn ends(&self) -> &[LlamaToken] {
        &self.facts.ends
    }

    /// Whether a token sees only those before it. Where it does not, there is no KV to keep.
    pub(crate) fn is_causal(&self) -> bool {
        self.facts.causal
    }

    pub(crate) fn opening(&self) -> &Mutex<()> {
        &self.opening
    }
}

impl Model for LlamaModel {
    fn name(&self) -> &str {
        &self.facts.name
    }

    fn context(&self) -> Tokens {
        self.facts.context
    }

    fn kv_bytes_per_token(&self) -> KvBytes {
        self.facts.kv_bytes_per_token
    }

    fn vocabulary(&self) -> u32 {
        self.facts.vocabulary
    }

    fn max_token_bytes(&self) -> u32 {
        self.facts.max_token_bytes
    }

    fn tokenize(&self, text: &str) -> Result<Vec<Token>, TokenizeError> {
        if i32::try_from(text.len()).is_err() {
            return Err(TokenizeError::TooLong(text.len()));
        }
        // The start token is added here and not by llama.cpp, which would double one that a
        // template wrote.
        let tokens = self.weights.vocab().tokenize(text.as_bytes(), false, true);
        let missing = self.facts.bos.filter(|bos| tokens.first() != Some(bos));
        Ok(missing
            .into_iter()
            .chain(tokens)
            .map(|token| Token::new(token.0))
            .collect())
    }

    fn render_chat(
        &self,
        messages: &[ChatMessage],
        tools: &[ToolOffer],
    ) -> Result<String, TemplateError> {
        self.template
            .as_ref()
            .map_err(Clone::clone)?
            .render(messages, tools)
    }

    fn call_style(&self) -> CallStyle {
        let template = self.template.as_ref();
        template.map_or(CallStyle::Tagged, ChatTemplate::style)
    }

    fn call_grammar(&self, offers: &[ToolOffer], count: CallCount) -> Result<String, GrammarError> {
        let style = self.call_style();
        let schema = tools::schema(offers, style);
        let one = json_schema_to_grammar(&schema).map_err(|_| GrammarError::NotASchema)?;
        let grammar = tools::grammar(&one, style, count);
        grammar_sampler(&grammar, self).map_err(|_| GrammarError::NotASchema)?;
        Ok(grammar)
    }

    fn vector_length(&self) -> Option<u32> {
        let length = self.weights.n_embd_out();
        let pools = self.facts.pooling.is_some();
        pools.then(|| u32::try_from(length).unwrap_or(0))
    }

    fn check_grammar(&self, grammar: &str) -> Result<(), GrammarError> {
        grammar::check_size(grammar)?;
        grammar_sampler(grammar, self).map(drop)
    }

    fn json_grammar(&self, schema: Option<&str>) -> Result<String, GrammarError> {
        let schema = schema.unwrap_or(r#"{"type":"object"}"#);
        grammar::check_schema(schema)?;
        let grammar = json_schema_to_grammar(schema).map_err(|_| GrammarError::NotASchema)?;
        grammar_sampler(&grammar, self).map_err(|_| GrammarError::NotASchema)?;
        Ok(grammar)
    }
}

/// llama.cpp, started at the first call.
pub(crate) fn backend() -> Result<&'static LlamaBackend, LoadError> {
    BACKEND
        .as_ref()
        .map_err(|why| LoadError::Backend(why.clone()))
}

impl Facts {
    fn of(weights: &llama_cpp_2::model::LlamaModel, path: &Path) -> Self {
        let vocab = weights.vocab();
        let file = || {
            path.file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        let longest = weights
            .tokens(true)
            .map(|(_, bytes)| bytes.len())
            .max()
            .unwrap_or(1);
        let architecture = weights.meta_val_str("general.architecture");
        let architecture = architecture.unwrap_or_default();
        let causal = weights.meta_val_str(&format!("{architecture}.attention.causal"));
        let window = weights.meta_val_str(&format!("{architecture}.attention.sliding_window"));
        let bos = (vocab.should_add_bos() && vocab.bos().0 >= 0).then(|| vocab.bos());
        Self {
            name: weights
                .meta_val_str("general.name")
                .unwrap_or_else(|_| file()),
            context: Tokens::new(u64::from(weights.n_ctx_train())),
            kv_bytes_per_token: kv_bytes_per_token(weights),
            vocabulary: u32::try_from(vocab.n_tokens()).unwrap_or(0),
            max_token_bytes: u32::try_from(longest.max(1)).unwrap_or(u32::MAX),
            ends: vocab
                .tokens()
                .filter(|token| vocab.is_eog(*token))
                .collect(),
            bos,
            pooling: Pooling::of_file(weights, &architecture),
            causal: causal.map_or(true, |causal| causal != "false"),
            slides: window.is_ok(),
        }
    }
}

/// Keys and values of each layer's KV heads, in the two bytes of llama.cpp's default cache type.
fn kv_bytes_per_token(weights: &llama_cpp_2::model::LlamaModel) -> KvBytes {
    let architecture = weights
        .meta_val_str("general.architecture")
        .unwrap_or_default();
    let embedding = u64::try_from(weights.n_embd()).unwrap_or(0);
    let default = embedding
        .checked_div(u64::from(weights.n_head()))
        .unwrap_or(0);
    let length = |name: &str| {
        let value = weights.meta_val_str(&format!("{architecture}.attention.{name}"));
        value
            .ok()
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    };
    let heads = u64::from(weights.n_head_kv()) * u64::from(weights.n_layer());
    KvBytes::new(2 * heads * (length("key_length") + length("value_length")))
}

fn compile(weights: &llama_cpp_2::model::LlamaModel) -> Result<ChatTemplate, TemplateError> {
    let source = weights
        .chat_template(None)
        .map_err(|_| TemplateError::NoTemplate)?;
    let source = source.to_string().map_err(|error| TemplateError::Broken {
        why: error.to_string(),
    })?;
    let vocab = weights.vocab();
    let text = |token: LlamaToken| {
        let text = (token.0 >= 0).then(|| vocab.text(token)).flatten();
        text.map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let special = SpecialTokens {
        bos: text(vocab.bos()),
        eos: text(vocab.eos()),
    };
    ChatTemplate::compile(source, special)
}
