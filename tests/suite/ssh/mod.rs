//! Hosts over SSH, against real sshds on the loopback interface.

mod bastion;
mod connect;
mod doctor;
mod place;
mod server;
mod stream;
