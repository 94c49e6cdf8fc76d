// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/tensor"
)

const (
	width = 48
	heads = 4
)

// newModel returns a transformer that predicts the next character, in three stages with one block each. What comes out has a
// row for every character that went in.
func newModel(r *rand.Rand, letters, length int) nn.Sequential {
	return nn.Sequential{
		nn.Sequential{newInput(r, letters, length), newBlock(r)},
		newBlock(r),
		nn.Sequential{newBlock(r), nn.NewLayerNorm(width), nn.NewLinear(r, width, letters), nn.Func(rows)},
	}
}

// rows makes one row of each character of all pieces of text.
func rows(x *autograd.Variable) *autograd.Variable {
	if x.Err() != nil {
		return x
	}
	return x.Reshape(-1, x.Shape()[2])
}

// input is what the network knows of a character: which one it is, and where.
type input struct{ letters, positions *nn.Embedding }

func newInput(r *rand.Rand, letters, length int) *input {
	in := &input{letters: nn.NewEmbedding(r, letters, width), positions: nn.NewEmbedding(r, length, width)}
	nn.Normal(r, in.positions.Weight, 0, 0.1)
	return in
}

func (in *input) Forward(ids *autograd.Variable) *autograd.Variable {
	if ids.Err() != nil {
		return ids
	}
	count := make([]int64, ids.Shape()[1])
	for i := range count {
		count[i] = int64(i)
	}
	positions, err := tensor.From(count)
	if err != nil {
		return autograd.Failed(err)
	}
	return in.letters.Forward(ids).Add(in.positions.Forward(autograd.Constant(positions)))
}

func (in *input) Params() []nn.Param {
	return append(nn.Prefix("letters", in.letters.Params()), nn.Prefix("positions", in.positions.Params())...)
}

// block is attention and a small network, each added to what comes in.
type block struct {
	norm1, norm2 *nn.LayerNorm
	attention    *nn.Attention
	mlp          nn.Sequential
}

func newBlock(r *rand.Rand) *block {
	return &block{
		norm1: nn.NewLayerNorm(width), norm2: nn.NewLayerNorm(width), attention: nn.NewAttention(r, width, heads, true),
		mlp: nn.Sequential{nn.NewLinear(r, width, 4*width), nn.GELU, nn.NewLinear(r, 4*width, width)},
	}
}

func (b *block) Forward(x *autograd.Variable) *autograd.Variable {
	x = x.Add(b.attention.Forward(b.norm1.Forward(x)))
	return x.Add(b.mlp.Forward(b.norm2.Forward(x)))
}

func (b *block) Params() []nn.Param {
	out := nn.Prefix("norm1", b.norm1.Params())
	out = append(out, nn.Prefix("attention", b.attention.Params())...)
	out = append(out, nn.Prefix("norm2", b.norm2.Params())...)
	return append(out, nn.Prefix("mlp", b.mlp.Params())...)
}

// alphabet numbers the characters of a text.
type alphabet struct {
	runes []rune
	ids   map[rune]int64
}

func newAlphabet(text string) *alphabet {
	a := &alphabet{ids: map[rune]int64{}}
	for _, r := range text {
		if _, known := a.ids[r]; !known {
			a.ids[r] = 0
			a.runes = append(a.runes, r)
		}
	}
	slices.Sort(a.runes)
	for i, r := range a.runes {
		a.ids[r] = int64(i)
	}
	return a
}

func (a *alphabet) size() int { return len(a.runes) }

func (a *alphabet) encode(text string) []int64 {
	var out []int64
	for _, r := range text {
		out = append(out, a.ids[r])
	}
	return out
}

func (a *alphabet) decode(ids []int64) string {
	var out []rune
	for _, id := range ids {
		out = append(out, a.runes[id])
	}
	return string(out)
}
