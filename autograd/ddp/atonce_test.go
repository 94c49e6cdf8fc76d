// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/tensor"
)

// atOnce checks that an error says that two passes met.
func atOnce(err error) error {
	if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "one pass at a time") {
		return fmt.Errorf("%w, want an error about two passes", err)
	}
	return nil
}

// TestSecondPass: a pass that begins while the gradients of another are being reduced fails, and so does the other: the ranks may have
// mixed them up. Here each of the two uses the parameters that the other does not, so that together they look like one.
func TestSecondPass(t *testing.T) {
	t.Parallel()
	wrapped(t, 2, net, nil, func(ctx context.Context, _ *group.Group, m nn.Sequential, model *ddp.Model) error {
		x, _ := batch(1, 8)
		if err := model.Forward(ctx, x).Err(); err != nil {
			return err
		}
		ones := autograd.Value{Dense: tensor.Must(tensor.Full(tensor.Float32, float32(1), 8, 8))}
		first := m[0].Forward(x)
		rest := m[2:].Forward(autograd.Constant(ones.Dense))
		late := autograd.Parameter(tensor.Must(tensor.From([]float32{1}))).Scale(2)
		pass := autograd.NewPass([]*autograd.Node{rest.Edge().Node, late.Edge().Node})
		upstream := autograd.Value{Dense: tensor.Must(tensor.Full(tensor.Float32, float32(1), 8, 2))}
		if err := errors.Join(pass.Deliver(rest.Edge().Node, []autograd.Value{upstream}), pass.Run(ctx)); err != nil {
			return err
		}
		if err := atOnce(autograd.Backward(ctx, []*autograd.Variable{first}, []autograd.Value{ones})); err != nil {
			return err
		}
		upstream = autograd.Value{Dense: tensor.Must(tensor.From([]float32{1}))}
		if err := errors.Join(pass.Deliver(late.Edge().Node, []autograd.Value{upstream}), pass.Run(ctx)); err != nil {
			return err
		}
		return errors.Join(atOnce(pass.Finish(ctx)), atOnce(model.Forward(ctx, x).Err()))
	})
}
