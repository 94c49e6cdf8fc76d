// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
)

func ExampleJoin() {
	dir, err := os.MkdirTemp("", "cohort")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()

	ctx := context.Background()
	address := url.URL{Scheme: "file", Path: filepath.Join(dir, "job")}
	m, err := rendezvous.Join(ctx, address.String(), rendezvous.WithRank(0), rendezvous.WithWorldSize(1))
	if err != nil {
		panic(err)
	}
	defer func() { _ = m.Close() }()
	fmt.Printf("rank %d of %d\n", m.Rank(), m.Size())
	// Output: rank 0 of 1
}

// A plan says what a join would do, without doing it.
func ExampleRegistry_Plan() {
	environment := map[string]string{"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
	plan, err := rendezvous.NewRegistry().Plan(rendezvous.Request{
		URL: "env://", Rank: cohort.NoRank, WorldSize: rendezvous.NoWorldSize,
		Env: func(name string) (string, bool) { value, set := environment[name]; return value, set },
	})
	fmt.Println(plan.Rank, plan.WorldSize, plan.Addr(), plan.Master, err)
	// Output: 3 8 node0:29500 false <nil>
}

func ExampleRegistry_Register() {
	shared := store.NewMemory()
	registry := rendezvous.NewRegistry()
	err := registry.Register("mine", func(_ context.Context, call rendezvous.Call) (*rendezvous.Member, error) {
		return rendezvous.NewMember(store.Prefix(call.Plan.Host, shared), 0, 1, rendezvous.Release{}), nil
	})
	if err != nil {
		panic(err)
	}
	m, err := rendezvous.Join(context.Background(), "mine://job-7", rendezvous.WithRegistry(registry))
	if err != nil {
		panic(err)
	}
	defer func() { _ = m.Close() }()
	fmt.Println(m.Rank(), registry.Schemes())
	// Output: 0 [env file mine tcp]
}
