// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package shm

import (
	"context"
	"runtime"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/tensor"
)

// HostID is empty where ranks cannot share memory.
func HostID() string { return "" }

// Engine exists on Linux only.
type Engine struct{}

// Join returns [cohort.NotSupported]: futexes and memfd are Linux's.
func Join(_ context.Context, c Config) (*Engine, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return nil, cohort.New("shm: join", cohort.NotSupported, "shared memory needs Linux, this is "+runtime.GOOS)
}

// Rank returns 0.
func (e *Engine) Rank() int { return 0 }

// Size returns 0.
func (e *Engine) Size() int { return 0 }

// Run returns [cohort.NotSupported].
func (e *Engine) Run(context.Context, *collective.Request) error {
	return cohort.New("shm: run", cohort.NotSupported, "")
}

// Resumable marks nothing here.
func (e *Engine) Resumable() {}

// Fail does nothing.
func (e *Engine) Fail(error) {}

// Mesh returns nil.
func (e *Engine) Mesh() transport.Mesh { return nil }

// Alloc returns [cohort.NotSupported].
func (e *Engine) Alloc(int) (*tensor.Storage, error) {
	return nil, cohort.New("shm: alloc", cohort.NotSupported, "")
}

// Close does nothing.
func (e *Engine) Close() error { return nil }
