// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cohort-dist/cohort/store"
)

func ExampleNewMemory() {
	ctx := context.Background()
	s := store.NewMemory()
	defer s.Close()
	go func() { _ = s.Set(ctx, "addr/1", []byte("10.0.0.2:4000")) }()
	peer, err := s.Get(ctx, "addr/1") // waits for the other side
	fmt.Println(string(peer), err)
	// Output: 10.0.0.2:4000 <nil>
}

func ExamplePrefix() {
	ctx := context.Background()
	s := store.NewMemory()
	job := store.Prefix("job7", s)
	_ = job.Set(ctx, "leader", []byte("0"))
	leader, _ := s.Get(ctx, "job7/leader")
	fmt.Println(string(leader))
	// Output: 0
}

func ExampleAppend() {
	ctx := context.Background()
	s := store.NewMemory()
	_ = store.Append(ctx, s, "log", []byte("po"))
	_ = store.Append(ctx, s, "log", []byte("tato"))
	log, _ := s.Get(ctx, "log")
	fmt.Println(string(log))
	// Output: potato
}

func ExampleMultiGet() {
	ctx := context.Background()
	s := store.NewMemory()
	_ = store.MultiSet(ctx, s, []string{"a", "b"}, [][]byte{[]byte("1"), []byte("2")})
	values, err := store.MultiGet(ctx, s, "b", "a")
	fmt.Printf("%s %v\n", values, err)
	// Output: [2 1] <nil>
}

func ExampleQueuePop() {
	ctx := context.Background()
	s := store.NewMemory()
	_ = store.QueuePush(ctx, s, "work", []byte("first"))
	_ = store.QueuePush(ctx, s, "work", []byte("second"))
	item, _ := store.QueuePop(ctx, s, "work", true)
	left, _ := store.QueueLen(ctx, s, "work")
	fmt.Println(string(item), left)
	_, _ = store.QueuePop(ctx, s, "work", false)
	_, err := store.QueuePop(ctx, s, "work", false)
	fmt.Println(errors.Is(err, store.ErrQueueEmpty))
	// Output:
	// first 1
	// true
}

func ExampleSupports() {
	s := store.Prefix("p", store.NewMemory())
	fmt.Println(store.Supports(s, store.FeatureQueue))
	// Output: true
}

func ExampleBarrier() {
	ctx := context.Background()
	s := store.NewMemory()
	done := make(chan error)
	for range 3 {
		go func() { done <- store.Barrier(ctx, s, "ready", 3) }()
	}
	fmt.Println(<-done, <-done, <-done)
	// Output: <nil> <nil> <nil>
}

func ExampleStore_timeout() {
	s := store.NewMemory()
	s.SetTimeout(10 * time.Millisecond)
	err := s.Wait(context.Background(), "never")
	fmt.Println(errors.Is(err, store.ErrTimeout), err)
	// Output: true store: wait "never": timeout: no answer within the store's timeout of 10ms
}
