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
	width  = 48
	heads  = 4
	blocks = 2
)

// model is a transformer that predicts the next character. Its parts can be cut apart between blocks.
type model struct {
	letters, positions *nn.Embedding
	blocks             nn.Sequence
	norm               *nn.LayerNorm
	out                *nn.Linear
}

func newModel(r *rand.Rand, letters, length int) *model {
	m := &model{letters: nn.NewEmbedding(r, letters, width), positions: nn.NewEmbedding(r, length, width), norm: nn.NewLayerNorm(width), out: nn.NewLinear(r, width, letters)}
	nn.Normal(r, m.positions.Weight, 0, 0.1)
	for range blocks {
		m.blocks = append(m.blocks, newBlock(r))
	}
	return m
}

func (m *model) Forward(ids *autograd.Variable) *autograd.Variable {
	if ids.Err() != nil {
		return ids
	}
	shape := ids.Shape()
	count := make([]int64, shape[1])
	for i := range count {
		count[i] = int64(i)
	}
	positions, err := tensor.From(count)
	if err != nil {
		return autograd.Failed(err)
	}
	x := m.letters.Forward(ids).Add(m.positions.Forward(autograd.Constant(positions)))
	return m.out.Forward(m.norm.Forward(m.blocks.Forward(x)))
}

func (m *model) Params() []nn.Param {
	var out []nn.Param
	for _, part := range []struct {
		name string
		m    nn.Module
	}{{"letters", m.letters}, {"positions", m.positions}, {"blocks", m.blocks}, {"norm", m.norm}, {"out", m.out}} {
		out = append(out, nn.Prefix(part.name, part.m.Params())...)
	}
	return out
}

// block is attention and a small network, each added to what comes in.
type block struct {
	norm1, norm2 *nn.LayerNorm
	attention    *nn.Attention
	mlp          nn.Sequence
}

func newBlock(r *rand.Rand) *block {
	return &block{
		norm1: nn.NewLayerNorm(width), norm2: nn.NewLayerNorm(width), attention: nn.NewAttention(r, width, heads, true),
		mlp: nn.Sequence{nn.NewLinear(r, width, 4*width), nn.GELU, nn.NewLinear(r, 4*width, width)},
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
