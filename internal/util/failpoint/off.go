// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !moments

package failpoint

// At marks a point of execution. The name reports where: "tcpstore.client.write".
func At(string) {}
