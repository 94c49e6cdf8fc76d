// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/internal/group/transport"
)

// roles are what a child process of a test can do.
var roles = map[string]func(e *Engine, args []string) error{}

// TestMain runs the tests, or one rank when a test started this binary again.
func TestMain(m *testing.M) {
	if role := os.Getenv("COHORT_SHM_ROLE"); role != "" {
		os.Exit(runRole(role))
	}
	goleak.VerifyTestMain(m)
}

func runRole(role string) int {
	rank, _ := strconv.Atoi(os.Getenv("COHORT_SHM_RANK"))
	size, _ := strconv.Atoi(os.Getenv("COHORT_SHM_SIZE"))
	limit, _ := time.ParseDuration(os.Getenv("COHORT_SHM_LIMIT"))
	area, _ := strconv.Atoi(os.Getenv("COHORT_SHM_AREA"))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e, err := Join(ctx, Config{
		Rank: rank, Size: size, Name: "test", Exchange: folder(os.Getenv("COHORT_SHM_FOLDER")), HeartbeatLimit: limit, Area: area,
		MappedFile: os.Getenv("COHORT_SHM_FILE") != "", OnLost: func(l transport.Loss) { losses <- l },
	})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	defer func() { _ = e.Close() }()
	if err := roles[role](e, strings.Fields(os.Getenv("COHORT_SHM_ARGS"))); err != nil {
		fmt.Println("error", err)
		return 1
	}
	return 0
}

// folder is an exchange for processes: a file per key.
type folder string

func (f folder) path(key string) string {
	return filepath.Join(string(f), strings.ReplaceAll(key, "/", "_"))
}

func (f folder) Set(_ context.Context, key string, value []byte) error {
	temporary := f.path(key) + ".new"
	if err := os.WriteFile(temporary, value, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, f.path(key))
}

func (f folder) Get(ctx context.Context, key string) ([]byte, error) {
	for {
		if b, err := os.ReadFile(f.path(key)); err == nil {
			return b, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// board is an exchange for ranks of one process.
type board struct {
	mu     sync.Mutex
	values map[string][]byte
	change chan struct{}
}

func newBoard() *board { return &board{values: map[string][]byte{}, change: make(chan struct{})} }

func (b *board) Set(_ context.Context, key string, value []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values[key] = value
	close(b.change)
	b.change = make(chan struct{})
	return nil
}

func (b *board) Get(ctx context.Context, key string) ([]byte, error) {
	for {
		b.mu.Lock()
		v, ok := b.values[key]
		change := b.change
		b.mu.Unlock()
		if ok {
			return v, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// world joins n ranks in this process, each with its own mapping.
func world(t *testing.T, n int, change func(*Config)) []*Engine {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	b := newBoard()
	engines := make([]*Engine, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			c := Config{Rank: r, Size: n, Name: t.Name(), Exchange: b, Arena: 8 << 20}
			if change != nil {
				change(&c)
			}
			engines[r], errs[r] = Join(ctx, c)
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, e := range engines {
			if e != nil {
				_ = e.Close()
			}
		}
	})
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	return engines
}

// each runs f on every rank and returns the errors.
func each(engines []*Engine, f func(e *Engine) error) []error {
	errs := make([]error, len(engines))
	var wg sync.WaitGroup
	for i, e := range engines {
		wg.Go(func() { errs[i] = f(e) })
	}
	wg.Wait()
	return errs
}
