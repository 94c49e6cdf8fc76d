// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcserve

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpcworld"
	"github.com/cohort-dist/cohort/rpc/py"
)

// TestRefusedCreation: a PyTorch worker may fetch an object before it hears that its creation was refused, since too many requests wait.
// The fetch is told why, too.
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
	var calls sync.WaitGroup
	defer calls.Wait()
	defer close(busy)
	for range 2 { // one runs and one waits
		calls.Go(func() { _, _ = client.call(ctx, "server", "m.busy") })
	}
	for {
		if _, _, waiting := server.server.Counts(); waiting == 1 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("nothing waits")
		}
		time.Sleep(time.Millisecond)
	}
	pair := rpcwire.RRefPair{RRef: rpcwire.GlobalID{On: 1, Local: 5}, Fork: rpcwire.GlobalID{On: 1, Local: 6}}
	creation, err := (&rpcwire.Encoder{}).PythonRemoteCall(rpcwire.RemoteUDF{UDF: rpcwire.UDF{Func: py.Func("m.busy"), Kwargs: &py.Dict{}}, RRefPair: pair})
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
	if raised, ok := v.(*rpcwire.RemoteException); !ok || !strings.Contains(raised.Msg, "wait for a place") {
		t.Errorf("the fetch is answered with %v, %v", v, err)
	}
}
