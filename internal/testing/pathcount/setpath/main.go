// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Setpath sets a key of a store on a server in the same process, for a count of the functions that this enters.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/pathcount"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	client, err := tcpstore.Dial(ctx, server.Addr().String())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := client.Set(ctx, "another key", []byte("value")); err != nil {
		return err
	}
	pathcount.Operation(func() error { return client.Set(ctx, "key", []byte("value")) })
	return nil
}
