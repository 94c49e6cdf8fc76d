// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/wire"
)

// note is what a connection knows about a message that came before its receive.
type note struct {
	call   wire.Call
	called bool
	whole  bool // all bytes are here
}

type early = link.Early[note]
