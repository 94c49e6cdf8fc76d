// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestKilledWorkerIsReplaced kills a PyTorch worker of a dynamic world. A Go worker takes its name, before any other worker joins, and its
// place: the PyTorch worker that stays calls it by that name. The name of a worker that lives is not taken, and neither is that worker
// harmed by being asked whether it lives.
func TestKilledWorkerIsReplaced(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		port, ctx := testkit.FreePort(t), testContext(t)
		hostStore(t, port)
		addr := "127.0.0.1:" + strconv.Itoa(port)
		run := func(name, script string) *torchtest.Proc {
			t.Helper()
			p := tr.Start(t, torchtest.Script{
				Name: name + ".py", Modules: map[string]string{"gostub": "def who():\n    raise NotImplementedError\n"},
				Source: fmt.Sprintf(prelude, "tcp://"+addr, "", name, map[string]int{"py2": 2, "w1": 1}[name], "None") +
					"import gostub\n" + script,
			})
			p.Expect(t, "joined")
			return p
		}
		stays := run("py2", `
for i in range(3):
    eq(rpc.rpc_sync("w1", gostub.who), "go%d" % i)
    print("called", flush=True)
    input()
`+fmt.Sprintf(epilogue, "graceful=False"))
		killed := run("w1", "input()\n")
		reg := func(i int) *rpc.Registry {
			return rpc.NewRegistry().MustHandle("gostub.who", func() string { return "go" + strconv.Itoa(i) })
		}
		for range 3 {
			st, err := tcpstore.Dial(ctx, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			double, err := rpc.Join(ctx, st, "w1", rpc.WithAddr("127.0.0.1:0"))
			if !errors.Is(err, cohort.AlreadyExists) || !strings.Contains(err.Error(), "id 1") {
				t.Fatalf("%v, %v; want an error that names the worker", double, err)
			}
		}
		var former *rpc.Agent
		for i := range 3 {
			if former == nil {
				killed.Kill()
			} else {
				_ = former.Close() // without a word
			}
			begun := time.Now()
			former = joinAt(ctx, t, addr, "w1", rpc.WithHandlers(reg(i)))
			if took := time.Since(begun); took > liveness {
				t.Errorf("it took the replacement %v to join", took)
			}
			stays.Send(t, "go")
			stays.Expect(t, "called")
		}
		stays.Send(t, "go")
		stays.Expect(t, "finished")
		if err := former.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		stays.Send(t, "go")
		stays.Expect(t, "left")
		stays.MustExit(t, 30*time.Second)
	})
}
