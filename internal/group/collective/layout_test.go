// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"bytes"
	"testing"

	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/tensor"
)

// TestTransposedBesidePyTorch: next to PyTorch ranks a transposed tensor travels in the order of its memory, as theirs do. Among Go
// ranks it travels in the order of its elements, and so does one with gaps anywhere.
func TestTransposedBesidePyTorch(t *testing.T) {
	t.Parallel()
	memory := []uint8{0, 1, 2, 3, 4, 5}
	transposed := func() *tensor.Tensor {
		return tensor.Must(tensor.Must(tensor.From(bytes.Clone(memory), 3, 2)).Transpose(0, 1))
	}
	gaps := func() *tensor.Tensor {
		return tensor.Must(tensor.Must(tensor.From([]uint8{0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9}, 2, 3, 2)).Select(2, 0))
	}
	for _, test := range []struct {
		name  string
		make  func() *tensor.Tensor
		peers torchcaps.Peers
		want  []uint8
	}{
		{"transposed, Go", transposed, torchcaps.Peers{}, []uint8{0, 2, 4, 1, 3, 5}},
		{"transposed, 1.13", transposed, torchcaps.Exactly(torchcaps.V1_13), memory},
		{"transposed, 2.14", transposed, torchcaps.Exactly(torchcaps.V2_14), memory},
		{"gaps, 2.14", gaps, torchcaps.Exactly(torchcaps.V2_14), memory},
	} {
		g := &Group{Rank: 0, Size: 1, Peers: test.peers}
		x := test.make()
		for name, fill := range map[string]func(c *Call) ([]byte, error){
			"all_reduce": func(c *Call) ([]byte, error) { err := g.AllReduce(c, x, reduce.Sum); return c.Request.Out, err },
			"reduce":     func(c *Call) ([]byte, error) { err := g.Reduce(c, x, reduce.Sum, 0); return c.Request.Out, err },
			"broadcast":  func(c *Call) ([]byte, error) { err := g.Broadcast(c, x, 0); return c.Request.Out, err },
			"scatter": func(c *Call) ([]byte, error) {
				err := g.Scatter(c, x, []*tensor.Tensor{test.make()}, 0)
				return c.Request.In, err
			},
		} {
			var c Call
			sent, err := fill(&c)
			if err != nil || !bytes.Equal(sent, test.want) {
				t.Errorf("%s, %s: sends %v (%v), want %v", test.name, name, sent, err, test.want)
			}
			if len(c.Outputs) != 1 || c.Outputs[0] != x {
				t.Errorf("%s, %s: the result is not the caller's tensor", test.name, name)
			}
			// What arrives in the same order is the same tensor.
			copy(c.Request.Out, test.want)
			if c.Finish != nil && c.Finish() != nil {
				t.Errorf("%s, %s: cannot be finished", test.name, name)
			}
			if !tensor.Equal(x, test.make()) {
				t.Errorf("%s, %s: ends as %v", test.name, name, x)
			}
		}
	}
}
