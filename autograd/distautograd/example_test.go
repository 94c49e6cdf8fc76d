// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// Two workers compute a loss, and each gets the gradients of its own parameters. In Python:
//
//	with dist_autograd.context() as context_id:
//	    loss = rpc.rpc_sync("ps", forward, args=(x,)).sum()
//	    dist_autograd.backward(context_id, [loss])
//	    grads = dist_autograd.get_gradients(context_id)
func Example() {
	ctx := context.Background()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()

	weight := autograd.Parameter(tensor.Must(tensor.From([]float64{10, 20}, 2)))
	reg := rpc.NewRegistry().
		MustHandle("ps.forward", func(x *autograd.Variable) *autograd.Variable { return x.Mul(weight) }).
		MustHandle("ps.gradient", func(ctx context.Context) *tensor.Tensor { return distautograd.From(ctx).Gradient(weight) })
	server, err := rpc.Join(ctx, st, "ps", rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg), distautograd.New().Join())
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

	gctx, c, err := engine.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	x := autograd.Parameter(tensor.Must(tensor.From([]float64{1, 2}, 2)))
	y, err := rpc.Call[*autograd.Variable](gctx, agent, "ps", "ps.forward", x)
	if err != nil {
		log.Fatal(err)
	}
	if err = c.Backward(gctx, []*autograd.Variable{y.Sum()}); err != nil {
		log.Fatal(err)
	}
	far, err := rpc.Call[*tensor.Tensor](gctx, agent, "ps", "ps.gradient")
	fmt.Println("at the trainer:", c.Gradient(x))
	fmt.Println("at the server: ", far, err)
	// Output:
	// at the trainer: tensor([10., 20.], dtype=torch.float64)
	// at the server:  tensor([1., 2.], dtype=torch.float64) <nil>
}
