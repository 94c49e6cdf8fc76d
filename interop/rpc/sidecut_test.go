// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// cutNth is a listener that keeps the nth connection for itself: the target sees that it begins and ends, and the other side nothing.
type cutNth struct {
	net.Listener
	target string
	left   int
}

// Accept returns the next of the others.
func (l *cutNth) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if l.left--; err != nil || l.left != 0 {
		return nc, err
	}
	seen, err := net.Dial("tcp", l.target)
	if err != nil {
		return nil, err
	}
	_ = seen.Close()
	go func() { _, _ = io.Copy(io.Discard, nc); _ = nc.Close() }() // ends with the other process
	return l.Listener.Accept()
}

// passOn passes connections on to target, except for the nth.
func passOn(t *testing.T, target string, nth int) string {
	t.Helper()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultnet.NewProxy(&cutNth{Listener: front, target: target, left: nth}, target, nil)
	t.Cleanup(func() { _ = proxy.Close() })
	return proxy.Addr()
}

// TestSideConnectionIsCut cuts a connection of a PyTorch worker's pipe before it has said what it is for. PyTorch does not notice. The
// pipe works without the one for descriptors, which is not used; without the one for tensors the Go worker ends it, before PyTorch's call
// times out. How soon is tested in package tensorpipe.
func TestSideConnectionIsCut(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for name, x := range map[string]struct {
			nth  int
			want string
		}{"descriptors": {2, "works"}, "tensors": {3, "is ended"}} {
			t.Run(name, func(t *testing.T) {
				storePort, port, ctx := testkit.FreePort(t), testkit.FreePort(t), testContext(t)
				hostStore(t, storePort)
				st, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(storePort))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = st.Close() })
				here := "127.0.0.1:" + strconv.Itoa(port)
				a, err := rpc.Join(ctx, st, "go0", rpc.WithRank(0), rpc.WithHandlers(refHandlers()), rpc.WithAddr(here),
					rpc.WithAdvertise(passOn(t, here, x.nth)))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = a.Close() })
				p := tr.Start(t, torchtest.Script{Name: "py1.py", Modules: refSettings(settings{}).modules, Source: fmt.Sprintf(`
import os, torch
import torch.distributed.rpc as rpc
import refstub
options = rpc.TensorPipeRpcBackendOptions(init_method=%q, rpc_timeout=50)
try:
    rpc.init_rpc("py1", rank=1, world_size=None, rpc_backend_options=options)
    assert torch.equal(rpc.rpc_sync("go0", refstub.fetch, args=(rpc.RRef(torch.ones(4)),)), torch.ones(4))
    print("works", flush=True)
except RuntimeError as e:
    said = []
    while e is not None: # what init_rpc does when it has failed fails as well
        said.append(str(e))
        e = e.__context__
    print("is ended" if any("eof" in s.lower() for s in said) else said, flush=True)
os._exit(0)
`, "tcp://127.0.0.1:"+strconv.Itoa(storePort))})
				p.Expect(t, x.want)
				p.MustExit(t, 30*time.Second)
			})
		}
	})
}
