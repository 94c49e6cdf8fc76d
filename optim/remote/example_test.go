// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package remote_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// A trainer updates a parameter that another worker owns. In Python:
//
//	with dist_autograd.context() as context_id:
//	    loss = rpc.rpc_sync("ps", forward, args=(weight, x)).sum()
//	    dist_autograd.backward(context_id, [loss])
//	    opt.step(context_id)
func Example() {
	ctx := context.Background()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()

	served := distautograd.New()
	reg := rpc.NewRegistry().
		MustHandle("ps.weight", func() *autograd.Variable { return param(10, 20) }).
		MustHandle("ps.forward", func(ctx context.Context, weight *rpc.Ref[*autograd.Variable],
			x *tensor.Tensor,
		) (*autograd.Variable, error) {
			w, err := weight.LocalValue(ctx)
			if err != nil {
				return nil, err
			}
			return autograd.Constant(x).Mul(w), nil
		})
	if err := remote.Serve(reg, served, nil); err != nil { // the owner of the parameter
		log.Fatal(err)
	}
	server, err := rpc.Join(ctx, st, "ps", rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), served.Join())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	engine := distautograd.New()
	agent, err := rpc.Join(ctx, st, "trainer", rpc.WithAddr("127.0.0.1:0"), engine.Join())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = agent.Close() }()

	weight, err := rpc.Remote[*autograd.Variable](ctx, agent, "ps", "ps.weight")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = weight.Close() }()
	opt, err := remote.New(ctx, agent, optim.SGD{LR: 0.5}, []*rpc.Ref[*autograd.Variable]{weight})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = opt.Close() }()

	gctx, c, err := engine.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	y, err := rpc.Call[*autograd.Variable](gctx, agent, "ps", "ps.forward", weight, tensor.Must(tensor.Of([]float64{1, 2})))
	if err != nil {
		log.Fatal(err)
	}
	if err = c.Backward(gctx, []*autograd.Variable{y.Sum()}); err != nil {
		log.Fatal(err)
	}
	if err = opt.Step(gctx, c); err != nil {
		log.Fatal(err)
	}
	now, err := weight.Fetch(ctx)
	fmt.Println(now.Data(), err) // minus 0.5 times the gradient, which is x
	// Output: tensor([ 9.5000, 19.0000], dtype=torch.float64, requires_grad=True) <nil>
}
