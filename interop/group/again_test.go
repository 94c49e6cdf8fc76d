// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// stayingSource is a PyTorch rank that stays in its group.
const stayingSource = `
import sys, datetime, torch, torch.distributed as dist
port = int(sys.argv[1])
limit = datetime.timedelta(seconds=60)
old = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
store = dist.TCPStore("127.0.0.1", port, 2, False, timeout=limit, wait_for_workers=False, **old)
dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=limit)
print("ready", flush=True)
sys.stdin.readline()
`

// TestSecondGroupUnderTheSameKeys: a Go rank makes a group a second time, and the PyTorch rank does not. It fails
// within its time, in New or, where the PyTorch rank still listens at its old address, in the first operation; and what
// to do about it was said.
func TestSecondGroupUnderTheSameKeys(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		server, err := tcpstore.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Close() }()
		client, err := tcpstore.Dial(ctx, server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		other := tr.Start(t, torchtest.Script{Name: "rank1.py", Source: stayingSource, Args: []string{strconv.Itoa(server.Port())}})
		var said bytes.Buffer
		join := func(limit time.Duration) (*group.Group, error) {
			return group.New(ctx, client, 0, 2, group.WithBareStore(), group.WithConnectTimeout(limit),
				group.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
		}
		first, err := join(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		other.Expect(t, "ready")
		_ = first.Close()
		if strings.Contains(said.String(), "prefix of its own") {
			t.Errorf("the first group: %s", said.String())
		}
		const words = "WithStorePrefix"
		second, err := join(3 * time.Second)
		if err == nil {
			err = group.AllReduceSlice(ctx, second, []float32{1}, group.Sum, group.WithTimeout(3*time.Second))
			_ = second.Close()
		} else if !strings.Contains(err.Error(), words) {
			t.Errorf("the error does not say what to do: %v", err)
		}
		if code := cohort.CodeOf(err); code != cohort.PeerLost && code != cohort.DeadlineExceeded {
			t.Errorf("the second group: %v", err)
		}
		if !strings.Contains(said.String(), words) {
			t.Errorf("the log does not say what to do: %s", said.String())
		}
		other.Send(t, "")
	})
}
