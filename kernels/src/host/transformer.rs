//! A whole transformer from the functions of this module: the test that they fit together.

use super::*;

/// Sizes of a decoder-only transformer with pre-normalisation.
#[derive(Clone, Copy)]
pub(crate) struct Transformer {
    pub(crate) attention: AttentionShape,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
}

/// Tensors of a layer, in the order of its parameters.
const NAMES: [&str; 12] = [
    "ln1 gamma",
    "ln1 beta",
    "qkv",
    "qkv bias",
    "project",
    "project bias",
    "ln2 gamma",
    "ln2 beta",
    "up",
    "up bias",
    "down",
    "down bias",
];

/// What the backward pass of a layer needs.
struct Kept<T> {
    x: Vec<T>,
    norm1: Norm<T>,
    qkv: Vec<T>,
    lse: Vec<T>,
    attended: Vec<T>,
    middle: Vec<T>,
    norm2: Norm<T>,
    up: Vec<T>,
    activated: Vec<T>,
}

/// Output of a layer normalisation and what it saved.
struct Norm<T> {
    out: Vec<T>,
    mean: Vec<T>,
    rstd: Vec<T>,
}

type Tensors<'a, T> = [(&'a str, Vec<T>)];

fn blank<T: Real>(len: usize) -> Vec<T> {
    vec![T::from_f64(f64::NAN); len]
}

impl Transformer {
    /// Names and lengths of all parameters.
    pub(crate) fn parameters(self) -> Vec<(&'static str, usize)> {
        let width = self.attention.width();
        let mut all = vec![("tokens", self.vocabulary * width), ("positions", self.attention.sequence * width)];
        let square = width * width;
        let lengths = [
            width,
            width,
            3 * square,
            3 * width,
            square,
            width,
            width,
            width,
            4 * square,
            4 * width,
            4 * square,
            width,
        ];
        for _ in 0..self.layers {
            all.extend(NAMES.into_iter().zip(lengths));
        }
        all.extend([("final gamma", width), ("final beta", width), ("head", width * self.vocabulary)]);
        all
    }

    fn linear<T: Real>(self, x: &[T], weight: &[T], columns: usize) -> Vec<T> {
        let rows = self.attention.tokens();
        let mut y = blank(rows * columns);
        let shape = MatmulShape { rows, inner: weight.len() / columns, columns };
        matmul(shape, Transposed::Neither, Update::Store, x, weight, &mut y);
        y
    }

    /// Returns dx; stores the gradient of the weight.
    fn linear_backward<T: Real>(self, x: &[T], weight: &[T], dy: &[T], dweight: &mut [T]) -> Vec<T> {
        let rows = self.attention.tokens();
        let (inner, columns) = (x.len() / rows, dy.len() / rows);
        let dw_shape = MatmulShape { rows: inner, inner: rows, columns };
        matmul(dw_shape, Transposed::Left, Update::Store, x, dy, dweight);
        let mut dx = blank(x.len());
        let dx_shape = MatmulShape { rows, inner: columns, columns: inner };
        matmul(dx_shape, Transposed::Right, Update::Store, dy, weight, &mut dx);
        dx
    }

    fn rows(self, width: usize) -> Rows {
        Rows { rows: self.attention.tokens(), width }
    }

    fn norm_shape(self) -> LayerNormShape {
        LayerNormShape { rows: self.rows(self.attention.width()), eps: 1e-5 }
    }

    fn norm<T: Real>(self, x: &[T], gamma: &[T], beta: &[T]) -> Norm<T> {
        let tokens = self.attention.tokens();
        let (mut out, mut mean, mut rstd) = (blank(x.len()), blank(tokens), blank(tokens));
        let operands = LayerNormForward { x, gamma, beta, out: &mut out, mean: &mut mean, rstd: &mut rstd };
        layer_norm_forward(self.norm_shape(), operands);
        Norm { out, mean, rstd }
    }

    /// Adds to `dx`.
    fn norm_backward<T: Real>(
        self,
        x: &[T],
        norm: &Norm<T>,
        gamma: &[T],
        dout: &[T],
        dx: &mut [T],
        grads: &mut Tensors<'_, T>,
    ) {
        let [(_, dgamma), (_, dbeta)] = grads else { panic!("scale and shift") };
        let Norm { mean, rstd, .. } = norm;
        let operands = LayerNormBackward { x, gamma, mean, rstd, dout, dx, dgamma, dbeta };
        layer_norm_backward(self.norm_shape(), Update::Accumulate, Update::Store, operands);
    }

    fn layer<T: Real>(self, x: Vec<T>, p: &Tensors<'_, T>) -> (Kept<T>, Vec<T>) {
        let width = self.attention.width();
        let norm1 = self.norm(&x, &p[0].1, &p[1].1);
        let mut qkv = self.linear(&norm1.out, &p[2].1, 3 * width);
        bias_forward(self.rows(3 * width), &p[3].1, &mut qkv);
        let (mut attended, mut lse) = (blank(self.attention.out_elements()), blank(self.attention.lse_elements()));
        attention_forward(self.attention, &qkv, &mut attended, &mut lse);
        let mut projected = self.linear(&attended, &p[4].1, width);
        bias_forward(self.rows(width), &p[5].1, &mut projected);
        let mut middle = blank(x.len());
        add(&x, &projected, &mut middle);

        let norm2 = self.norm(&middle, &p[6].1, &p[7].1);
        let mut up = self.linear(&norm2.out, &p[8].1, 4 * width);
        bias_forward(self.rows(4 * width), &p[9].1, &mut up);
        let mut activated = blank(up.len());
        gelu_forward(&up, &mut activated);
        let mut out = self.linear(&activated, &p[10].1, width);
        bias_forward(self.rows(width), &p[11].1, &mut out);
        accumulate(&middle, &mut out);
        (Kept { x, norm1, qkv, lse, attended, middle, norm2, up, activated }, out)
    }

    /// Turns the gradient of the layer's output into that of its input.
    fn layer_backward<T: Real>(self, kept: &Kept<T>, p: &Tensors<'_, T>, dx: &mut [T], grads: &mut Tensors<'_, T>) {
        let width = self.attention.width();
        bias_backward(self.rows(width), dx, Update::Store, &mut grads[11].1);
        let dactivated = self.linear_backward(&kept.activated, &p[10].1, dx, &mut grads[10].1);
        let mut dup = blank(dactivated.len());
        gelu_backward(&kept.up, &dactivated, &mut dup);
        bias_backward(self.rows(4 * width), &dup, Update::Store, &mut grads[9].1);
        let dnorm = self.linear_backward(&kept.norm2.out, &p[8].1, &dup, &mut grads[8].1);
        self.norm_backward(&kept.middle, &kept.norm2, &p[6].1, &dnorm, dx, &mut grads[6..8]);

        bias_backward(self.rows(width), dx, Update::Store, &mut grads[5].1);
        let dattended = self.linear_backward(&kept.attended, &p[4].1, dx, &mut grads[4].1);
        let mut dqkv = blank(kept.qkv.len());
        attention_backward(self.attention, &kept.qkv, &kept.lse, &dattended, &mut dqkv);
        bias_backward(self.rows(3 * width), &dqkv, Update::Store, &mut grads[3].1);
        let dnorm = self.linear_backward(&kept.norm1.out, &p[2].1, &dqkv, &mut grads[2].1);
        self.norm_backward(&kept.x, &kept.norm1, &p[0].1, &dnorm, dx, &mut grads[0..2]);
    }

    /// Mean loss over the tokens, and the gradients of all parameters.
    pub(crate) fn step<T: Real, I: Token>(
        self,
        p: &Tensors<'_, T>,
        ids: &[I],
        targets: &[I],
    ) -> (T, Vec<(&'static str, Vec<T>)>) {
        let (width, tokens) = (self.attention.width(), self.attention.tokens());
        let embedding = EmbeddingShape { vocabulary: self.vocabulary, positions: self.attention.sequence, width };
        let mut grads: Vec<_> = self.parameters().into_iter().map(|(name, len)| (name, blank(len))).collect();
        let layer_range = |layer: usize| 2 + NAMES.len() * layer..2 + NAMES.len() * (layer + 1);
        let last = 2 + NAMES.len() * self.layers;

        let mut x = blank(tokens * width);
        embedding_forward(embedding, ids, &p[0].1, &p[1].1, &mut x);
        let mut kept = Vec::new();
        for layer in 0..self.layers {
            let (layer_kept, out) = self.layer(x, &p[layer_range(layer)]);
            kept.push(layer_kept);
            x = out;
        }
        let norm = self.norm(&x, &p[last].1, &p[last + 1].1);
        let logits = self.linear(&norm.out, &p[last + 2].1, self.vocabulary);

        let (mut losses, mut loss, mut dlogits) = (blank(tokens), T::ZERO, blank(logits.len()));
        let scale = 1.0 / tokens as f64;
        cross_entropy(self.rows(self.vocabulary), scale, &logits, targets, &mut losses, &mut loss, &mut dlogits);

        let dnorm = self.linear_backward(&norm.out, &p[last + 2].1, &dlogits, &mut grads[last + 2].1);
        let mut dx = blank(x.len());
        fill(T::ZERO, &mut dx);
        self.norm_backward(&x, &norm, &p[last].1, &dnorm, &mut dx, &mut grads[last..last + 2]);
        for layer in (0..self.layers).rev() {
            self.layer_backward(&kept[layer], &p[layer_range(layer)], &mut dx, &mut grads[layer_range(layer)]);
        }
        let (first, rest) = grads.split_at_mut(1);
        embedding_backward(embedding, ids, &dx, Update::Store, &mut first[0].1, &mut rest[0].1);
        (loss, grads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_close, assert_gradients, to_f32};

    const TINY: Transformer = Transformer {
        attention: AttentionShape { batch: 2, sequence: 5, heads: 2, head_width: 3 },
        layers: 1,
        vocabulary: 7,
    };

    fn start(model: Transformer, random: &mut Random) -> Vec<(&'static str, Vec<f64>)> {
        let scaled = |values: Vec<f64>| values.iter().map(|x| 0.7 * x).collect();
        model.parameters().into_iter().map(|(name, len)| (name, scaled(random.values(len)))).collect()
    }

    #[test]
    fn gradients_of_a_layer_match_finite_differences() {
        let mut random = Random::new(19);
        let parameters = start(TINY, &mut random);
        let (ids, targets) = (random.tokens(10, 7), random.tokens(10, 7));
        let (_, gradients) = TINY.step(&parameters, &ids, &targets);
        let gradients: Vec<&[f64]> = gradients.iter().map(|(_, gradient)| gradient.as_slice()).collect();
        assert!(gradients.iter().all(|gradient| gradient.iter().any(|x| x.abs() > 1e-4)), "all take part");
        assert_gradients(&parameters, &gradients, |parameters| TINY.step(parameters, &ids, &targets).0);
    }

    #[test]
    fn single_precision_is_close() {
        let mut random = Random::new(20);
        let model = Transformer { layers: 2, ..TINY };
        let parameters = start(model, &mut random);
        let single: Vec<_> = parameters.iter().map(|(name, values)| (*name, to_f32(values))).collect();
        let (ids, targets) = (random.tokens(10, 7), random.tokens(10, 7));
        let (loss, gradients) = model.step(&parameters, &ids, &targets);
        let (single_loss, single_gradients) = model.step(&single, &ids, &targets);
        assert_close("loss", &[single_loss], &[loss], 1e-5);
        for ((name, gradient), (_, single)) in gradients.iter().zip(&single_gradients) {
            assert_close(name, single, gradient, 1e-5);
        }
    }

    #[test]
    fn it_learns_a_sequence() {
        let mut random = Random::new(21);
        let mut parameters: Vec<_> =
            start(TINY, &mut random).iter().map(|(name, values)| (*name, to_f32(values))).collect();
        let mut moments: Vec<_> = parameters.iter().map(|(_, p)| (vec![0.0; p.len()], vec![0.0; p.len()])).collect();
        let (ids, targets) = ([0u8, 1, 2, 3, 4, 6, 5, 4, 3, 2], [1u8, 2, 3, 4, 5, 5, 4, 3, 2, 1]);
        let first = TINY.step(&parameters, &ids, &targets).0;
        let settings = AdamW { lr: 0.02, ..AdamW::default() };
        for step in 1..=60 {
            let (_, gradients) = TINY.step(&parameters, &ids, &targets);
            let states = parameters.iter_mut().zip(&gradients).zip(&mut moments);
            for (((_, parameter), (_, gradient)), (first, second)) in states {
                adamw(settings, step, gradient, parameter, first, second);
            }
        }
        let last = TINY.step(&parameters, &ids, &targets).0;
        assert!(first > 1.0 && last < 0.1, "from {first} to {last}");
    }
}
