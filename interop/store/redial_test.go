// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

//go:embed redial.py
var redialScript string

// TestPythonStoreDialsAgain: cohort_dist.store is a Store for every PyTorch, goes on over new connections when the old ones break, also in
// a wait and in a watch, and tells a server that was replaced from its own.
func TestPythonStoreDialsAgain(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		host, inside := torch.TempDir(t)
		if err := os.CopyFS(filepath.Join(host, "cohort_dist"), os.DirFS("../../python/cohort_dist")); err != nil {
			t.Fatal(err)
		}
		server := serve(t)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port()))
		proxy, err := faultnet.ListenTCP(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = proxy.Close() })
		client, err := tcpstore.Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		p := torch.Start(t, torchtest.Script{Name: "redial.py", Source: redialScript, Args: []string{inside, proxy.Addr()}})
		p.Expect(t, "working")
		if proxy.Cut() == 0 {
			t.Error("there was no connection")
		}
		p.Send(t, "go")
		p.Expect(t, "again")
		proxy.Refuse(true)
		proxy.Cut()
		for key, value := range map[string]string{"late": "from Go", "watched": "end"} {
			if err = client.Set(t.Context(), key, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		p.Send(t, "go")
		proxy.Refuse(false)
		p.Expect(t, "forked")
		server.Clear()
		p.Send(t, "go")
		p.Expect(t, "fresh")
		_ = proxy.Close()
		p.Send(t, "go")
		p.Expect(t, "done")
		p.MustExit(t, time.Minute)
	})
}
