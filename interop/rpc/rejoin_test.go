// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/tensor"
)

// TestRankIsTakenAgain lets one worker after the other come to a dynamic world under the same name and rank, in both languages. The ids of
// references and contexts of every PyTorch process begin anew; those of the former ones must not stand in their way.
func TestRankIsTakenAgain(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		port, ctx := testkit.FreePort(t), testContext(t)
		hostStore(t, port)
		join := func(m member, rank int) *rpc.Agent {
			opts := append([]rpc.Option{rpc.WithRank(cohort.Rank(rank)), rpc.WithHandlers(addRefHandlers(m.reg))}, m.opts...)
			return joinAt(ctx, t, "127.0.0.1:"+strconv.Itoa(port), m.name, opts...)
		}
		stays, layer := goLayer("go0")
		a := join(stays, 0)
		clean := func() {
			t.Helper()
			for _, key := range []string{
				"num_owner_rrefs", "num_forks", "num_confirmed_users", "num_pending_users",
				"num_failed_users", "num_autograd_contexts",
			} {
				eventually(t, a, key, 0)
			}
		}
		modules := refSettings(settings{}).modules
		modules["layers"] = layers
		run := func(script string) *torchtest.Proc {
			t.Helper()
			p := tr.Start(t, torchtest.Script{
				Name: "w1.py", Modules: modules,
				Source: fmt.Sprintf(prelude, "tcp://127.0.0.1:"+strconv.Itoa(port), "", "w1", 1, "None") +
					"import refstub, layers\n" + script + fmt.Sprintf(epilogue, ""),
			})
			p.Expect(t, "joined")
			p.Send(t, "go")
			p.Expect(t, "finished")
			return p
		}
		end := func(p *torchtest.Proc) {
			t.Helper()
			p.Send(t, "stop")
			p.Expect(t, "left")
			p.MustExit(t, 30*time.Second)
		}
		byTorch := func() {
			t.Helper()
			p := run(`
kept = rpc.remote("go0", refstub.counter, args=(5,))
for i in range(3):
    r = rpc.remote("go0", refstub.counter, args=(5,))
    eq(r.rpc_sync().add(3), 8)
    mine = rpc.RRef(7)
    eq(rpc.rpc_sync("go0", refstub.fetch, args=(mine,)), 7)
    del r, mine
    layers.check("w1", ["go0"])
eq(kept.rpc_sync().value(), 5)
del kept
gc.collect()
`)
			ref, err := rpc.Remote[*tensor.Tensor](ctx, a, "w1", "pyrefs.make", 3)
			if err != nil {
				t.Fatal(err)
			}
			if x, err := ref.Fetch(ctx); err != nil || x.Numel() != 3 {
				t.Fatalf("fetch: %v, %v", x, err)
			}
			_ = ref.Close()
			layer.chain(ctx, t, a, []string{"w1"})
			clean()
			end(p)
		}
		byGo := func() {
			t.Helper()
			comes, its := goLayer("w1")
			b := join(comes, 1)
			for from, to := range map[*rpc.Agent]string{a: "w1", b: "go0"} {
				ref, err := rpc.Remote[*tensor.Tensor](ctx, from, to, "refstub.tensor", 3)
				if err != nil {
					t.Fatal(err)
				}
				if x, err := ref.Fetch(ctx); err != nil || x.Numel() != 3 {
					t.Fatalf("fetch: %v, %v", x, err)
				}
				_ = ref.Close()
			}
			layer.chain(ctx, t, a, []string{"w1"})
			its.chain(ctx, t, b, []string{"go0"})
			clean()
			if err := b.Shutdown(ctx); err != nil {
				t.Fatal(err)
			}
		}
		byTorch()
		byTorch()
		byGo()
		byTorch()
		byGo()
		byGo()

		// An object that is still held after its creator has gone is not taken for another one with its id.
		end(run(`
r = rpc.remote("go0", refstub.counter, args=(5,))
rpc.rpc_sync("go0", refstub.keep, args=(r,))
del r
gc.collect()
`))
		last := run(`
r = rpc.remote("go0", refstub.counter, args=(1,))
try:
    r.to_here()
except Exception as e:
    assert "the object is gone" in str(e), str(e)
else:
    raise SystemExit("an object with the id of another")
eq(rpc.rpc_sync("go0", refstub.kept).rpc_sync().value(), 5)
del r
rpc.rpc_sync("go0", refstub.drop)
gc.collect()
`)
		end(last)
	})
}
