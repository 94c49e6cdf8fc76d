// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// A client finds out by itself what kind of server it talks to: cohort's, PyTorch 1.13's or PyTorch 2's.
func ExampleDial() {
	ctx := context.Background()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	client, err := tcpstore.Dial(ctx, server.Addr().String(), tcpstore.WithTimeout(10*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	fmt.Println("dialect:", client.Dialect())

	go client.Set(ctx, "address/0", []byte("10.0.0.1:5000")) //nolint:errcheck // the Get below tells
	value, err := client.Get(ctx, "address/0")               // waits until it is there
	fmt.Printf("%s %v\n", value, err)
	// Output:
	// dialect: native
	// 10.0.0.1:5000 <nil>
}

// Waiting operations end with their context or with the store's timeout, and the client stays usable.
func ExampleClient_Wait() {
	ctx := context.Background()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := tcpstore.Dial(ctx, server.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	err = client.Wait(short, "never")
	fmt.Println(errors.Is(err, store.ErrTimeout), errors.Is(err, context.DeadlineExceeded))
	n, err := client.Add(ctx, "counter", 2)
	fmt.Println(n, err)
	// Output:
	// true true
	// 2 <nil>
}

// The workers of a job count themselves, as PyTorch's constructor does when it is given a world size.
func ExampleClient_JoinWorker() {
	ctx := context.Background()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	for range 3 {
		worker, err := tcpstore.Dial(ctx, server.Addr().String())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer worker.Close()
		joined, err := worker.JoinWorker(ctx)
		fmt.Println(joined, err)
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}
