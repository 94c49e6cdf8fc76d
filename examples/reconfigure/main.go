// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command reconfigure trains a model with members that join and leave, without a restart. Started alone it hosts the
// store and the coordinator, which decides which processes are members; with -join it is a member itself. train.py is a member written in
// Python, which needs PyTorch 2.14. Both train the same model in one group:
//
//	go run ./examples/reconfigure -listen 127.0.0.1:29500 -members 3 &
//	python3 examples/reconfigure/train.py 127.0.0.1:29500 &
//	python3 examples/reconfigure/train.py 127.0.0.1:29500 &
//	go run ./examples/reconfigure -join 127.0.0.1:29500 &
//	python3 examples/reconfigure/train.py 127.0.0.1:29500 --die-at 30 || echo "one is dead" &
//
// Three of the four train, the fourth is a spare. One of them kills itself (as kill -9 does) after 30 steps, if it is a member by
// then: the others keep their processes and their model, the spare gets it from one of them, and the loss continues falling.
//
// The launcher has a coordinator too, and starts and watches the members. Five processes, four members; kill -9 one of them:
//
//	cohort run --nproc-per-node 5 --members 4 examples/reconfigure/train.py
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:29500", "where the store is, for the coordinator")
	members := flag.Int("members", 3, "members of the group")
	silence := flag.Duration("silence", 3*time.Second, "after how long without a sign of life a member counts as dead")
	join := flag.String("join", launched(), "be a member, and find the coordinator through the store at this address; cohort run sets it")
	steps := flag.Int("steps", 100, "steps to train, for a member")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *join != "" {
		err = train(ctx, *join, *steps)
	} else {
		err = coordinate(ctx, *listen, *members, *silence)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// launched returns the store of "cohort run --members", if that has started this process.
func launched() string {
	if os.Getenv(elastic.EnvMember) == "" {
		return ""
	}
	return net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
}

// coordinate hosts the store, outside of all members, and decides who they are.
func coordinate(ctx context.Context, addr string, members int, silence time.Duration) error {
	server, err := tcpstore.Listen(addr)
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	client, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	c, err := elastic.New(client, members, members, elastic.WithSilence(silence))
	if err != nil {
		return err
	}
	fmt.Println("store and coordinator at", addr)
	if err = c.Run(ctx); err != nil {
		return err
	}
	fmt.Println("all members have finished")
	// Members that have not read their last answer still need the store.
	time.Sleep(time.Second)
	return nil
}
