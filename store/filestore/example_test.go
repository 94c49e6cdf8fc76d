// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cohort-dist/cohort/store/filestore"
)

func ExampleOpen() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "store")

	// Two processes open the file; in Python: torch.distributed.FileStore(path, 2).
	a, err := filestore.Open(ctx, path, filestore.WithWorldSize(2))
	if err != nil {
		fmt.Println(err)
		return
	}
	b, _ := filestore.Open(ctx, path, filestore.WithWorldSize(2))
	_ = a.Set(ctx, "greeting", []byte("hello"))
	greeting, _ := b.Get(ctx, "greeting")
	fmt.Println(string(greeting))

	_, _ = a.Close(), b.Close()
	_, err = os.Stat(path)
	fmt.Println("removed:", os.IsNotExist(err))
	// Output:
	// hello
	// removed: true
}

func ExampleRepair() {
	dir, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "store")
	_ = os.WriteFile(path, []byte("\x02\x00\x00\x00/a\x01\x00\x00\x00x\x02\x00\x00"), 0o600) // one record and a bit
	cut, err := filestore.Repair(context.Background(), path)
	fmt.Println(cut, err)
	// Output: 3 <nil>
}
