// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpccmd

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// A Go worker is listed as one also when it speaks nothing but PyTorch's transport.
func TestReadRPCWorldKinds(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	st := store.NewMemory()
	defer func() { _ = st.Close() }()
	for i, transports := range [][]string{{rpc.TransportCohort, rpc.TransportUV}, {rpc.TransportUV}} {
		a, err := rpc.Join(ctx, st, []string{"both", "uv"}[i], rpc.WithRank(cohort.Rank(i)), rpc.WithAddr("127.0.0.1:0"),
			rpc.WithTransports(transports...))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Close() }()
	}
	world := store.Prefix(roundPrefix(0), st)
	if err := world.Set(ctx, rpcMembersKey, []byte("both-0,uv-1,torch-2,")); err != nil {
		t.Fatal(err)
	}
	got, err := readRPCWorld(ctx, st, -1)
	if err != nil {
		t.Fatal(err)
	}
	want := []rpcMember{{ID: 0, Name: "both", Go: true}, {ID: 1, Name: "uv", Go: true}, {ID: 2, Name: "torch"}}
	if diff := cmp.Diff(want, got.Workers, cmpopts.IgnoreFields(rpcMember{}, "Addr")); diff != "" {
		t.Error(diff)
	}
}
