//! Forward and backward of each unit, as launches.

use highwater::{Buffer, Stream, View};
use highwater_kernels as kernels;
use highwater_kernels::host::{AttentionShape, EmbeddingShape, LayerNormShape, MatmulShape, Rows, Transposed, Update};

use super::layout::{Embed, Head, Layer, Linear, Norm};
use super::{Config, VOCABULARY};
use crate::run::ModelError;

type Floats = Buffer<f32>;
type FloatView<'a> = View<'a, f32>;

/// The shapes of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    width: usize,
    attention: AttentionShape,
    embedding: EmbeddingShape,
    /// Whether attention does anything.
    attends: bool,
    /// One over the tokens of the whole step.
    loss_scale: f64,
}

impl Sizes {
    pub(super) fn new(config: &Config) -> Self {
        let Config { width, heads, sequence, micro_batch, .. } = *config;
        Sizes {
            width,
            attention: AttentionShape { batch: micro_batch, sequence, heads, head_width: width / heads },
            embedding: EmbeddingShape { vocabulary: VOCABULARY, positions: sequence, width },
            attends: config.attention,
            loss_scale: 1.0 / config.global_tokens as f64,
        }
    }

    /// Tokens of a micro-batch.
    pub(super) fn tokens(&self) -> usize {
        self.attention.tokens()
    }

    fn rows(&self, width: usize) -> Rows {
        Rows { rows: self.tokens(), width }
    }

    fn norm(&self) -> LayerNormShape {
        LayerNormShape { rows: self.rows(self.width), eps: 1e-5 }
    }

    /// Memory for a row of `width` elements for each token.
    #[track_caller]
    fn alloc(&self, stream: &Stream, width: usize) -> Result<Floats, ModelError> {
        Ok(stream.alloc(self.tokens() * width)?)
    }
}

/// What every operation of a unit's pass needs.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) sizes: &'a Sizes,
    pub(super) stream: &'a Stream,
    pub(super) parameters: FloatView<'a>,
}

/// What a layer norm leaves for its backward.
struct SavedNorm {
    out: Floats,
    mean: Floats,
    rstd: Floats,
}

impl Norm {
    fn forward(&self, pass: Pass<'_>, x: &Floats) -> Result<SavedNorm, ModelError> {
        let Pass { sizes, stream, parameters } = pass;
        let saved = SavedNorm {
            out: sizes.alloc(stream, sizes.width)?,
            mean: sizes.alloc(stream, 1)?,
            rstd: sizes.alloc(stream, 1)?,
        };
        let views = kernels::LayerNormForward {
            x: x.view(),
            gamma: parameters.slice(self.gamma.clone()),
            beta: parameters.slice(self.beta.clone()),
            out: saved.out.view(),
            mean: saved.mean.view(),
            rstd: saved.rstd.view(),
        };
        kernels::layer_norm_forward(stream, sizes.norm(), views)?;
        Ok(saved)
    }

    /// Stores or adds the gradient of `x`, and stores those of the parameters.
    fn backward(
        &self,
        pass: Pass<'_>,
        gradients: FloatView<'_>,
        x: &Floats,
        saved: &SavedNorm,
        dout: &Floats,
        (update, dx): (Update, &Floats),
    ) -> Result<(), ModelError> {
        let Pass { sizes, stream, parameters } = pass;
        let views = kernels::LayerNormBackward {
            x: x.view(),
            gamma: parameters.slice(self.gamma.clone()),
            mean: saved.mean.view(),
            rstd: saved.rstd.view(),
            dout: dout.view(),
            dx: dx.view(),
            dgamma: gradients.slice(self.gamma.clone()),
            dbeta: gradients.slice(self.beta.clone()),
        };
        Ok(kernels::layer_norm_backward(stream, sizes.norm(), update, Update::Store, views)?)
    }
}

impl Linear {
    fn forward(&self, pass: Pass<'_>, x: &Floats) -> Result<Floats, ModelError> {
        let Pass { sizes, stream, parameters } = pass;
        let out = sizes.alloc(stream, self.outputs)?;
        let shape = MatmulShape { rows: sizes.tokens(), inner: self.inputs, columns: self.outputs };
        let weight = parameters.slice(self.weight.clone());
        kernels::matmul(stream, shape, Transposed::Neither, Update::Store, x.view(), weight, out.view())?;
        kernels::bias_forward(stream, sizes.rows(self.outputs), parameters.slice(self.bias.clone()), out.view())?;
        Ok(out)
    }

    /// The gradient of `x`; those of the parameters are stored.
    fn backward(
        &self,
        pass: Pass<'_>,
        gradients: FloatView<'_>,
        x: &Floats,
        dout: &Floats,
    ) -> Result<Floats, ModelError> {
        let Pass { sizes, stream, parameters } = pass;
        let dx = sizes.alloc(stream, self.inputs)?;
        let tokens = sizes.tokens();
        let of_weight = MatmulShape { rows: self.inputs, inner: tokens, columns: self.outputs };
        let dweight = gradients.slice(self.weight.clone());
        kernels::matmul(stream, of_weight, Transposed::Left, Update::Store, x.view(), dout.view(), dweight)?;
        let dbias = gradients.slice(self.bias.clone());
        kernels::bias_backward(stream, sizes.rows(self.outputs), dout.view(), Update::Store, dbias)?;
        let of_x = MatmulShape { rows: tokens, inner: self.outputs, columns: self.inputs };
        let weight = parameters.slice(self.weight.clone());
        kernels::matmul(stream, of_x, Transposed::Right, Update::Store, dout.view(), weight, dx.view())?;
        Ok(dx)
    }
}

impl Embed {
    pub(super) fn forward(&self, pass: Pass<'_>, ids: View<'_, u32>) -> Result<Floats, ModelError> {
        let Pass { sizes, stream, parameters } = pass;
        let out = sizes.alloc(stream, sizes.width)?;
        let tables = (parameters.slice(self.tokens.clone()), parameters.slice(self.positions.clone()));
        kernels::embedding_forward(stream, sizes.embedding, ids, tables.0, tables.1, out.view())?;
        Ok(out)
    }

    pub(super) fn backward(
        &self,
        pass: Pass<'_>,
        gradients: FloatView<'_>,
        ids: View<'_, u32>,
        dout: &Floats,
    ) -> Result<(), ModelError> {
        let Pass { sizes, stream, .. } = pass;
        let tables = (gradients.slice(self.tokens.clone()), gradients.slice(self.positions.clone()));
        Ok(kernels::embedding_backward(stream, sizes.embedding, ids, dout.view(), Update::Store, tables.0, tables.1)?)
    }
}

/// What a layer leaves for its backward.
pub(super) struct SavedLayer {
    x: Floats,
    attention_norm: SavedNorm,
    qkv: Floats,
    lse: Floats,
    attended: Floats,
    middle: Floats,
    mlp_norm: SavedNorm,
    expanded: Floats,
    activated: Floats,
}

impl Layer {
    /// x → x + projection(attention(norm(x))) → the same + contract(gelu(expand(norm(it)))).
    pub(super) fn forward(&self, pass: Pass<'_>, x: Floats) -> Result<(Floats, SavedLayer), ModelError> {
        let Pass { sizes, stream, .. } = pass;
        let attention_norm = self.attention_norm.forward(pass, &x)?;
        let qkv = self.qkv.forward(pass, &attention_norm.out)?;
        let attended = sizes.alloc(stream, sizes.width)?;
        let lse = stream.alloc(sizes.attention.lse_elements())?;
        if sizes.attends {
            kernels::attention_forward(stream, sizes.attention, qkv.view(), attended.view(), lse.view())?;
        } else {
            kernels::fill(stream, 0.0, attended.view())?;
        }
        let projected = self.projection.forward(pass, &attended)?;
        let middle = sizes.alloc(stream, sizes.width)?;
        kernels::add(stream, x.view(), projected.view(), middle.view())?;

        let mlp_norm = self.mlp_norm.forward(pass, &middle)?;
        let expanded = self.expand.forward(pass, &mlp_norm.out)?;
        let activated = sizes.alloc(stream, self.expand.outputs)?;
        kernels::gelu_forward(stream, expanded.view(), activated.view())?;
        let contracted = self.contract.forward(pass, &activated)?;
        let out = sizes.alloc(stream, sizes.width)?;
        kernels::add(stream, middle.view(), contracted.view(), out.view())?;
        let saved = SavedLayer { x, attention_norm, qkv, lse, attended, middle, mlp_norm, expanded, activated };
        Ok((out, saved))
    }

    /// Turns the gradient of the output, in `dx`, into that of the input.
    pub(super) fn backward(
        &self,
        pass: Pass<'_>,
        gradients: FloatView<'_>,
        saved: &SavedLayer,
        dx: &Floats,
    ) -> Result<(), ModelError> {
        let Pass { sizes, stream, .. } = pass;
        let dactivated = self.contract.backward(pass, gradients, &saved.activated, dx)?;
        let dexpanded = sizes.alloc(stream, self.expand.outputs)?;
        kernels::gelu_backward(stream, saved.expanded.view(), dactivated.view(), dexpanded.view())?;
        let dnorm = self.expand.backward(pass, gradients, &saved.mlp_norm.out, &dexpanded)?;
        self.mlp_norm.backward(pass, gradients, &saved.middle, &saved.mlp_norm, &dnorm, (Update::Accumulate, dx))?;

        let dattended = self.projection.backward(pass, gradients, &saved.attended, dx)?;
        let dqkv = sizes.alloc(stream, self.qkv.outputs)?;
        if sizes.attends {
            let views = kernels::AttentionBackward {
                qkv: saved.qkv.view(),
                out: saved.attended.view(),
                lse: saved.lse.view(),
                dout: dattended.view(),
                dqkv: dqkv.view(),
            };
            kernels::attention_backward(stream, sizes.attention, views)?;
        } else {
            kernels::fill(stream, 0.0, dqkv.view())?;
        }
        let dnorm = self.qkv.backward(pass, gradients, &saved.attention_norm.out, &dqkv)?;
        self.attention_norm.backward(pass, gradients, &saved.x, &saved.attention_norm, &dnorm, (Update::Accumulate, dx))
    }
}

/// What the head leaves for its backward.
pub(super) struct SavedHead {
    x: Floats,
    norm: SavedNorm,
    dlogits: Floats,
}

impl Head {
    /// Norm, logits, and the loss of the micro-batch into `loss`.
    pub(super) fn forward(
        &self,
        pass: Pass<'_>,
        x: Floats,
        targets: View<'_, u32>,
        loss: FloatView<'_>,
    ) -> Result<SavedHead, ModelError> {
        let Pass { sizes, stream, parameters } = pass;
        let norm = self.norm.forward(pass, &x)?;
        let logits = sizes.alloc(stream, VOCABULARY)?;
        let shape = MatmulShape { rows: sizes.tokens(), inner: sizes.width, columns: VOCABULARY };
        let weight = parameters.slice(self.weight.clone());
        kernels::matmul(stream, shape, Transposed::Neither, Update::Store, norm.out.view(), weight, logits.view())?;
        let dlogits = sizes.alloc(stream, VOCABULARY)?;
        let token_losses = sizes.alloc(stream, 1)?;
        let views = kernels::CrossEntropy {
            logits: logits.view(),
            targets,
            token_losses: token_losses.view(),
            loss,
            dlogits: dlogits.view(),
        };
        kernels::cross_entropy(stream, sizes.rows(VOCABULARY), sizes.loss_scale, views)?;
        Ok(SavedHead { x, norm, dlogits })
    }

    /// The gradient of the residual stream.
    pub(super) fn backward(
        &self,
        pass: Pass<'_>,
        gradients: FloatView<'_>,
        saved: &SavedHead,
    ) -> Result<Floats, ModelError> {
        let Pass { sizes, stream, parameters } = pass;
        let (tokens, width) = (sizes.tokens(), sizes.width);
        let dlogits = saved.dlogits.view();
        let of_weight = MatmulShape { rows: width, inner: tokens, columns: VOCABULARY };
        let dweight = gradients.slice(self.weight.clone());
        kernels::matmul(stream, of_weight, Transposed::Left, Update::Store, saved.norm.out.view(), dlogits, dweight)?;
        let dnorm = sizes.alloc(stream, width)?;
        let of_norm = MatmulShape { rows: tokens, inner: VOCABULARY, columns: width };
        let weight = parameters.slice(self.weight.clone());
        kernels::matmul(stream, of_norm, Transposed::Right, Update::Store, dlogits, weight, dnorm.view())?;
        let dx = sizes.alloc(stream, width)?;
        self.norm.backward(pass, gradients, &saved.x, &saved.norm, &dnorm, (Update::Store, &dx))?;
        Ok(dx)
    }
}
