// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import (
	"bytes"
	"hash/crc32"
)

// WithFormat returns a file as a version with another format would begin it.
func WithFormat(file []byte, format uint32) []byte {
	b := bytes.Clone(file)
	little.PutUint32(b[8:], format)
	little.PutUint32(b[headerSize-4:], crc32.Checksum(b[:headerSize-4], castagnoli))
	return b
}
