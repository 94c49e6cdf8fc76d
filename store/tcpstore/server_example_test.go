// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// A store for a job of PyTorch and Go processes: torch.distributed.TCPStore(host, port, is_master=True).
func ExampleListen() {
	server, err := tcpstore.Listen("127.0.0.1:0") // ":29500" for all addresses and PyTorch's usual port
	if err != nil {
		panic(err)
	}
	// ... hand server.Port() to the workers as MASTER_PORT, run the job ...
	fmt.Println(server.Port() > 0, server.Stats().Keys)

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fmt.Println(server.Shutdown(ctx)) // waits until the workers have gone
	// Output:
	// true 0
	// <nil>
}

// A server on a listener that exists already.
func ExampleServe() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server, err := tcpstore.Serve(listener, tcpstore.WithLimits(tcpstore.Limits{Memory: 1 << 30, Conns: 1000}))
	if err != nil {
		panic(err)
	}
	defer server.Close()
	fmt.Println(server.Addr().Network())
	// Output: tcp
}

// Two masters of one process share a server: multi_tenant=True.
func ExampleShared() {
	var servers tcpstore.Shared
	first, err := servers.Acquire("127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer first.Close()
	second, err := servers.Acquire(first.Addr().String())
	if err != nil {
		panic(err)
	}
	defer second.Close()
	fmt.Println(first.Port() == second.Port())
	// Output: true
}

// A server that is started again with its folder goes on with what it held.
func ExampleWithDataDir() {
	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	for range 2 {
		server, err := tcpstore.Listen("127.0.0.1:0", tcpstore.WithDataDir(dir))
		if err != nil {
			fmt.Println(err)
			return
		}
		client, err := tcpstore.Dial(ctx, server.Addr().String())
		if err != nil {
			fmt.Println(err)
			return
		}
		n, err := client.Add(ctx, "starts", 1)
		fmt.Println(n, err)
		_ = client.Close()
		_ = server.Close()
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
}
