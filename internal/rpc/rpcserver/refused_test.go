// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/internal/rpc/rpcsession"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcworld"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc/py"
)

// TestRefusedCreation: a PyTorch worker may fetch an object before it learns that its creation was refused, since too many requests wait.
// The fetch gets the reason, too.
func TestRefusedCreation(t *testing.T) {
	server, client := start(t, "server", 0, 1, 1), startAs(t, "client", 1, 1, 4, nil)
	server.net.AddPeer("client", 1, "uv://"+client.net.Addr().String(), rpcworld.Entry{})
	client.net.AddPeer("server", 0, "uv://"+server.net.Addr().String(), rpcworld.Entry{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	busy := make(chan struct{})
	server.prog.handle("m.busy", func(_ context.Context, _ *Call, done func(any, error)) {
		<-busy
		done(nil, nil)
	})
	defer occupy(ctx, t, server, client, busy)()
	pair := rpcwire.RRefPair{RRef: rpcwire.GlobalID{On: 1, Local: 5}, Fork: rpcwire.GlobalID{On: 1, Local: 6}}
	creation, err := (&rpcwire.Encoder{}).PythonRemoteCall(
		rpcwire.RemoteUDF{UDF: rpcwire.UDF{Func: py.Func("m.busy"), Kwargs: &py.Dict{}}, RRefPair: pair})
	if err != nil {
		t.Fatal(err)
	}
	x, err := client.send(ctx, "server", rpcwire.PythonRemoteCall, creation)
	if err != nil || x.Msg.Type != rpcwire.RemoteRet {
		t.Errorf("the creation is answered with %v, %v", x.Msg, err) // else PyTorch takes long to settle it
	}
	fetch, err := rpcwire.Fetch{RRef: pair.RRef, From: 0}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	x, err = client.send(ctx, "server", rpcwire.PythonRRefFetchCall, fetch)
	if err != nil {
		t.Fatal(err)
	}
	v, err := (&rpcwire.Decoder{Tensors: x.Msg.Tensors}).PythonFetchRet(x.Msg.Payload)
	if raised, ok := v.(*rpcwire.RemoteException); !ok || !strings.Contains(raised.Msg, "wait for a slot") {
		t.Errorf("the fetch is answered with %v, %v", v, err)
	}
}

// occupy calls m.busy of a server with one place and room for one request until both are taken. The function that it
// returns lets the calls go.
func occupy(ctx context.Context, t *testing.T, server, client *node, busy chan struct{}) func() {
	t.Helper()
	var calls sync.WaitGroup
	for range 2 { // one runs and one waits
		calls.Go(func() { _, _ = client.call(ctx, "server", "m.busy") })
	}
	testkit.Until(t, "a request waits", func() bool { _, _, waiting := server.server.Counts(); return waiting == 1 })
	return func() {
		close(busy)
		calls.Wait()
	}
}

// TestBrokenFetch: a fetch of a PyTorch worker that cannot be read is refused.
func TestBrokenFetch(t *testing.T) {
	server, client := start(t, "server", 0, 1, 1), startAs(t, "client", 1, 1, 4, nil)
	server.net.AddPeer("client", 1, "uv://"+client.net.Addr().String(), rpcworld.Entry{})
	client.net.AddPeer("server", 0, "uv://"+server.net.Addr().String(), rpcworld.Entry{})
	server.spoils = errors.New("a tensor that cannot be read")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	fetch, err := rpcwire.Fetch{RRef: rpcwire.GlobalID{On: 1, Local: 5}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = client.send(ctx, "server", rpcwire.PythonRRefFetchCall, fetch); err == nil ||
		!strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("the fetch is answered with %v", err)
	}
}

// carried is a reference in a message of a test.
type carried struct {
	pyconv.ReferenceMark
	rpcwire.RRefFork
}

// TestRefusedCallReleases: whatever a call of PyTorch is refused for, the references among its arguments are released, those too that
// come after what cannot be read. PyTorch keeps them until it is notified, and its shutdown waits for that.
func TestRefusedCallReleases(t *testing.T) {
	server, client := start(t, "server", 0, 1, 1), startAs(t, "client", 1, 1, 4, nil)
	controls := make(chan string, 16)
	client.hears = func(in rpcsession.Incoming) { controls <- fmt.Sprintf("%v %x", in.Kind, in.Payload) }
	server.net.AddPeer("client", 1, "uv://"+client.net.Addr().String(), rpcworld.Entry{})
	client.net.AddPeer("server", 0, "uv://"+server.net.Addr().String(), rpcworld.Entry{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	busy := make(chan struct{})
	server.prog.handle("m.busy", func(_ context.Context, _ *Call, done func(any, error)) {
		<-busy
		done(nil, nil)
	})
	encoder := func() *rpcwire.Encoder {
		//nolint:errcheck,forcetypeassert // see below
		return &rpcwire.Encoder{Fork: func(r pyconv.Reference) (rpcwire.RRefFork, error) { return r.(carried).RRefFork, nil }}
	}
	number := int64(100)
	// check sends a call with a reference to an object of the client and one to an object of the server, and waits for both releases.
	check := func(name string, encode func(args []any) (rpcwire.Type, []byte)) {
		t.Helper()
		number += 10
		id := func(n int64) rpcwire.GlobalID { return rpcwire.GlobalID{On: 1, Local: number + n} }
		mine := rpcwire.RRefFork{Owner: 1, RRef: id(0), Fork: id(1), Parent: 1, TypeName: rpcwire.TypePyObject}
		yours := rpcwire.RRefFork{Owner: 0, RRef: id(2), Fork: id(3), Parent: 1, TypeName: rpcwire.TypePyObject}
		deletion, err1 := rpcwire.RRefPair{RRef: mine.RRef, Fork: mine.Fork}.Encode()
		accept, err2 := rpcwire.EncodeForkID(yours.Fork)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{
			fmt.Sprintf("%v %x", rpcwire.RRefUserDelete, deletion): true,
			fmt.Sprintf("%v %x", rpcwire.RRefChildAccept, accept):  true,
		}
		kind, payload := encode([]any{carried{RRefFork: mine}, carried{RRefFork: yours}})
		_, _ = client.send(ctx, "server", kind, payload) // how it is answered is another matter
		for len(want) > 0 {
			select {
			case got := <-controls:
				if !want[got] {
					t.Errorf("%s: %s", name, got)
				}
				delete(want, got)
			case <-ctx.Done():
				t.Fatalf("%s: not released: %v", name, slices.Collect(maps.Keys(want)))
			}
		}
	}
	call := func(fn any, args []any) (rpcwire.Type, []byte) {
		t.Helper()
		e := encoder()
		v, err := e.Pickle(&py.Object{
			Class: py.Global{Module: "torch.distributed.rpc.internal", Name: "PythonUDF"}, New: true,
			Args: py.Tuple{fn, py.Tuple(args), &py.Dict{}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return rpcwire.PythonCall, append([]byte{0}, v...)
	}
	info := &py.Object{Class: py.Global{Module: "torch._C._distributed_rpc", Name: "WorkerInfo"}} // one without name and id cannot be read
	check("unknown function", func(args []any) (rpcwire.Type, []byte) { return call(py.Func("m.unknown"), args) })
	check("no name", func(args []any) (rpcwire.Type, []byte) { return call("text", args) })
	check("unreadable argument", func(args []any) (rpcwire.Type, []byte) {
		return call(py.Func("m.busy"), slices.Insert(args, 1, any(info)))
	})
	check("too many wrappers", func(args []any) (rpcwire.Type, []byte) {
		kind, payload := call(py.Func("m.busy"), args)
		for range 7 {
			wrapped, err := rpcwire.Profiling{Inner: kind, Config: rpcwire.ProfileCPU()}.WrapRequest(payload)
			if err != nil {
				t.Fatal(err)
			}
			kind, payload = rpcwire.RunWithProfilingReq, wrapped
		}
		return kind, payload
	})
	defer occupy(ctx, t, server, client, busy)()
	check("no place", func(args []any) (rpcwire.Type, []byte) { return call(py.Func("m.busy"), args) })
}
