// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// note is what a connection knows about a message that came before its receive.
type note struct {
	call   nativewire.Call
	called bool
	whole  bool // all bytes are here
}

type early = transport.Early[note]
