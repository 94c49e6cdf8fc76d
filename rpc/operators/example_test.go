// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package operators_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/tensor"
)

// A worker serves PyTorch's builtin operators. A PyTorch caller names a function,
// rpc.rpc_sync("go0", torch.mul, args=(x, y)); a Go caller names the schema that PyTorch sends for it.
func ExampleServe() {
	ctx := context.Background()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	server, err := rpc.Join(ctx, st, "go0", rpc.WithAddr("127.0.0.1:0"), operators.Serve(operators.WithBudget(1<<30)))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	agent, err := rpc.Join(ctx, st, "go1", rpc.WithAddr("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = agent.Close() }()

	x := tensor.Must(tensor.Of([]float32{1, 2, 3}))
	y, err := rpc.Call[*tensor.Tensor](ctx, agent, "go0", "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", x, x)
	fmt.Println(y, err)
	// Output: tensor([1., 4., 9.]) <nil>
}
