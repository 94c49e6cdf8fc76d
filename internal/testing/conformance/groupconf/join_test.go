// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package groupconf

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/world"
)

// TestStoreTimeout: the timeout of a world is that of its store, which the error of an unanswered get names.
func TestStoreTimeout(t *testing.T) {
	for _, url := range []string{
		"file://" + filepath.Join(t.TempDir(), "store"),
		fmt.Sprintf("tcp://127.0.0.1:%d", testkit.FreePort(t)),
	} {
		w, err := world.Join(t.Context(), url, world.WithRank(0), world.WithWorldSize(1), world.WithTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		_, err = w.Store().Get(t.Context(), "nonexistent key")
		if took := time.Since(begin); !errors.Is(err, store.ErrTimeout) || !strings.Contains(err.Error(), "timeout") ||
			took < time.Second/2 || took > 5*time.Second {
			t.Errorf("%s: after %v: %v", url, took, err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLoggingInit: joining leaves the program's log alone.
func TestLoggingInit(t *testing.T) {
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	vars := map[string]string{"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(testkit.FreePort(t))}
	w, err := world.Join(t.Context(), "env://",
		world.WithRendezvous(rendezvous.WithEnv(func(name string) (string, bool) { v, ok := vars[name]; return v, ok })))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Group(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if slog.Default() != logger || log.Writer() != writer || log.Flags() != flags {
		t.Error("the program's log was changed")
	}
}

// TestChoiceOfServer: a world that asks for one of PyTorch's two servers, in its URL or in the environment, has a TCP store under
// the prefixes of its group, and the group works.
func TestChoiceOfServer(t *testing.T) {
	for _, choice := range []string{"0", "1"} {
		port := strconv.Itoa(testkit.FreePort(t))
		for url, env := range map[string]map[string]string{
			"tcp://127.0.0.1:" + port + "?use_libuv=" + choice: nil,
			"env://": {"USE_LIBUV": choice, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
		} {
			w, err := world.Join(t.Context(), url, world.WithRank(0), world.WithWorldSize(1),
				world.WithRendezvous(rendezvous.WithEnv(func(name string) (string, bool) { v, ok := env[name]; return v, ok })))
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := store.UnderlyingNonPrefix(w.Store()).(*tcpstore.Client); !ok {
				t.Errorf("%s: the store is a %T", url, store.UnderlyingNonPrefix(w.Store()))
			}
			g, err := w.Group(t.Context())
			if err == nil {
				err = g.Barrier(t.Context()).Wait(t.Context())
			}
			if err = errors.Join(err, w.Close()); err != nil {
				t.Errorf("%s: %v", url, err)
			}
		}
	}
}
