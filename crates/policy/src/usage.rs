//! What a request used, counted where it was made.

use crate::units::{Service, Tokens};

/// Tokens of one request, as the engine counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens whose KV the request holds or held: computed for it, or reused. Tokens
    /// computed a second time after a preemption are our cost, not the tenant's, and are not
    /// counted again.
    pub prompt: Tokens,
    /// Those of the prompt tokens whose KV was reused.
    pub cached: Tokens,
    /// Tokens generated, cancelled requests included.
    pub output: Tokens,
}

impl Usage {
    /// The service this is, with a weight per computed prompt token and per output token.
    ///
    /// `W_f` of Sheng et al. (OSDI 2024, section 3) before the division by the tenant's weight.
    pub fn service(self, weights: Weights) -> Service {
        let prompt = self.prompt - self.cached + self.cached.percent(weights.cached_percent);
        prompt.weighted(weights.input) + self.output.weighted(weights.output)
    }

    /// The tokens that count against a rate of tokens per minute.
    pub fn rated(self, weights: Weights) -> Tokens {
        self.prompt - self.cached + self.cached.percent(weights.cached_percent) + self.output
    }
}

/// Where a usage comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// The engine counted.
    #[default]
    Exactly,
    /// Reckoned from the text, since the engine told none.
    Roughly,
}

/// What a token of service counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Service units per computed prompt token.
    pub input: u64,
    /// Service units per output token.
    pub output: u64,
    /// What a cached prompt token counts, in per cent of one that is computed: for service and for
    /// rates alike.
    pub cached_percent: u64,
}

impl Default for Weights {
    /// 1 and 2, as in Sheng et al. (OSDI 2024, section 5.1).
    fn default() -> Self {
        Self {
            input: 1,
            output: 2,
            cached_percent: 0,
        }
    }
}
