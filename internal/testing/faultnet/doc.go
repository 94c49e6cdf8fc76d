// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package faultnet gives tests networks that fail on command.
//
// [Network] is a network in memory: connections have buffers and deadlines like TCP, but block only on channels, so they
// work inside testing/synctest bubbles. [Proxy] sits between a client and a server, over TCP or over a Network, and can
// cut connections and delay, throttle, drop or corrupt data.
package faultnet
