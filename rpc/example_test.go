// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// Two workers of a dynamic world. In a job each is a process of its own, and some are PyTorch processes that have called
// init_rpc; the store is then the one that the rendezvous gave.
func Example() {
	ctx := context.Background()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()

	type scaleArgs struct {
		Xs     []float64
		Factor float64 `rpc:"factor"`
	}
	reg := rpc.NewRegistry().
		MustHandle("vectors.scale", func(_ context.Context, in scaleArgs) ([]float64, error) {
			for i := range in.Xs {
				in.Xs[i] *= in.Factor
			}
			return in.Xs, nil
		})
	server, err := rpc.Join(ctx, st, "server", rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	client, err := rpc.Join(ctx, st, "client", rpc.WithAddr("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()

	ys, err := rpc.Call[[]float64](ctx, client, "server", "vectors.scale", []float64{1, 2}, rpc.Kw{"factor": 10})
	fmt.Println(ys, err)

	ref, err := rpc.Remote[[]float64](ctx, client, "server", "vectors.scale", []float64{3}, 2)
	if err != nil {
		log.Fatal(err)
	}
	value, err := ref.Fetch(ctx)
	fmt.Println(ref.Owner().Name, value, err)
	_ = ref.Close()
	// Output:
	// [10 20] <nil>
	// server [6] <nil>
}
