// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package storelog

import "os"

func syncData(f *os.File) error { return f.Sync() }

func allocate(*os.File, int64) error { return nil }
