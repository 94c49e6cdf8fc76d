// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cohortwire

import "errors"

// rawSockets tells that rawWrite cannot be used.
const rawSockets = false

// rawWrite leaves everything to the flusher: there are no writes here that do not wait.
func rawWrite(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
