//! A connection to a server, and what it must be able to do.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ErrorKind, Pipeline, RedisError, RedisResult, Value, cmd, pipe,
};
use async_trait::async_trait;

use super::refusal;
use crate::pool::{self, Connector};

/// A connection that was idle for so long is asked whether it still is one.
const FRESH: Duration = Duration::from_secs(1);

/// Commands that wait for the writer of a connection.
const QUEUE: usize = 256;

/// Redis' own default for the longest string, used where it does not say.
const MAX_BULK_LENGTH: u64 = 512 << 20;

/// Major and minor.
pub(super) type Version = (u32, u32);

/// What the options ask of the server.
#[derive(Clone, Debug)]
pub(super) struct Requirement {
    pub(super) version: Version,
    pub(super) what: &'static str,
    pub(super) instead: &'static str,
}

/// How to connect.
pub(super) struct Server {
    pub(super) client: Client,
    pub(super) requirements: Vec<Requirement>,
}

/// One connection.
pub(super) struct Connection {
    commands: MultiplexedConnection,
    /// The longest string that the server takes, in bytes.
    pub(super) max_value: u64,
}

/// A connection for one batch.
pub(super) type Lease<'p> = pool::Lease<'p, Server>;

#[async_trait]
impl Connector for Server {
    type Connection = Connection;

    /// Host and port, or the socket's path.
    fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    async fn connect(&self) -> Result<Connection, String> {
        // Every call has its own deadline; the client's half second would be too short for a server that flushes.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(QUEUE);
        let connected = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let mut commands = connected.map_err(|error| describe(&error))?;
        let mut questions = pipe();
        questions.cmd("INFO").arg("server").cmd("CONFIG").arg("GET").arg("proto-max-bulk-len");
        let answers = ask(&mut commands, &questions).await.map_err(|error| describe(&error))?;
        if let Some(Value::ServerError(error)) = answers.first()
            && error.code() != "NOPERM"
        {
            return Err(refusal::text(error));
        }
        let version = answers.first().and_then(text_of).and_then(|info| version(&info));
        for requirement in &self.requirements {
            requirement.check(version)?;
        }
        let limit = answers.get(1).and_then(setting_of).and_then(|text| text.parse().ok());
        Ok(Connection { commands, max_value: limit.unwrap_or(MAX_BULK_LENGTH) })
    }

    async fn is_alive(&self, connection: &mut Connection, idle: Duration) -> bool {
        idle < FRESH || connection.commands.send_packed_command(&cmd("PING")).await.is_ok()
    }
}

impl Connection {
    /// Sends commands at once and returns their answers, error answers included.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(super) async fn ask(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        ask(&mut self.commands.clone(), commands).await
    }
}

async fn ask(connection: &mut MultiplexedConnection, commands: &Pipeline) -> RedisResult<Vec<Value>> {
    connection.send_packed_commands(commands, 0, commands.len()).await
}

impl Requirement {
    /// A server that does not tell its version gets the benefit of the doubt.
    fn check(&self, version: Option<Version>) -> Result<(), String> {
        let Some(found) = version.filter(|found| *found < self.version) else { return Ok(()) };
        let Self { version: needed, what, instead } = self;
        Err(format!(
            "Redis {}.{} has no {what}; use {}.{} or newer, or {instead}",
            found.0, found.1, needed.0, needed.1
        ))
    }
}

/// The error in one line.
pub(super) fn describe(error: &RedisError) -> String {
    match ::redis::ServerError::try_from(error.clone()) {
        Ok(error) => refusal::text(&error),
        Err(error) if error.kind() == ErrorKind::AuthenticationFailed => match error.detail() {
            Some(detail) => format!("the login was refused: {detail}"),
            None => "the login was refused: user or password is wrong".to_owned(),
        },
        Err(error) => error.detail().map_or_else(|| error.to_string(), str::to_owned),
    }
}

/// `redis_version` of `INFO`.
pub(super) fn version(info: &str) -> Option<Version> {
    let text = info.lines().find_map(|line| line.strip_prefix("redis_version:"))?;
    let mut numbers = text.trim().split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A string answer.
pub(super) fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// The value that `CONFIG GET` answers with for one setting.
pub(super) fn setting_of(value: &Value) -> Option<String> {
    match value {
        Value::Array(pair) => pair.get(1).and_then(text_of),
        Value::Map(pairs) => pairs.first().and_then(|(_, value)| text_of(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_told_apart_from_one_that_does_not_say() {
        let needs = Requirement { version: (7, 2), what: "WAITAOF", instead: "`wait_aof = false`" };
        assert_eq!(version("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"), Some((7, 0)));
        let error = needs.check(Some((7, 0))).unwrap_err();
        assert_eq!(error, "Redis 7.0 has no WAITAOF; use 7.2 or newer, or `wait_aof = false`");
        for enough in [None, Some((7, 2)), Some((8, 0))] {
            assert_eq!(needs.check(enough), Ok(()));
        }
    }
}
