//! Carries out two plans at a time: one for the relays, one for what is around them.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::proxy::{Proxy, Weather};
use tokio::time::{Instant, sleep};

use super::plan::{Fault, Plan, Step};
use super::world::{LEASE, Player, SWEEP, Servers, Store, World};
use crate::stage::{Database, Engine, Stage};

/// Goes on until the time is over and each fault has come; says how many there were.
pub(crate) async fn act(world: &mut World, plans: [Plan; 2], lasts: Duration) -> Result<usize> {
    let World { stage, players, servers } = world;
    let end = Instant::now() + lasts;
    let [of_relays, of_servers] = plans;
    let (relays, others) = tokio::try_join!(
        harm_relays(stage, players, of_relays, end),
        harm_servers(servers, of_servers, end)
    )?;
    Ok(relays + others)
}

async fn harm_relays(stage: &Stage, players: &mut [Player], mut plan: Plan, end: Instant) -> Result<usize> {
    let (mut done, relays) = (0, players.len());
    while Instant::now() < end || done < plan.round() {
        let Step { rest, fault, .. } = plan.next_step();
        sleep(rest).await;
        let player = &mut players[done % relays];
        eprintln!("relay {}: {fault:?}", done % relays);
        match fault {
            Fault::KillRelay => player.restart(stage)?,
            Fault::WrongClock(off) => player.restart_with_clock(stage, off)?,
            Fault::StopRelay => {
                player.relay.pause();
                sleep(LEASE + SWEEP * 2).await;
                player.relay.resume();
            }
            other => unreachable!("{other:?} is none of a relay"),
        }
        done += 1;
    }
    Ok(done)
}

async fn harm_servers(servers: &Servers, mut plan: Plan, end: Instant) -> Result<usize> {
    let mut done = 0;
    while Instant::now() < end || done < plan.round() {
        let Step { rest, fault, lasts } = plan.next_step();
        sleep(rest).await;
        eprintln!("{fault:?} for {lasts:?}");
        match fault {
            Fault::KillBroker => {
                servers.broker.kill()?;
                sleep(lasts).await;
                servers.broker.start_again()?;
            }
            Fault::BrokerLink(weather) => storm(&servers.broker_link, weather, lasts).await,
            Fault::StoreLink(weather) => storm(&store(servers)?.link, weather, lasts).await,
            Fault::StopStore => {
                store(servers)?.server.stop_immediately()?;
                sleep(lasts).await;
                store(servers)?.server.launch()?;
            }
            Fault::KillStore => {
                store(servers)?.server.kill()?;
                sleep(lasts).await;
                store(servers)?.server.launch()?;
            }
            Fault::LongReader => read_for(&servers.url, lasts).await?,
            other => unreachable!("{other:?} is a relay's"),
        }
        done += 1;
    }
    Ok(done)
}

fn store(servers: &Servers) -> Result<&Store> {
    servers.store.as_ref().context("a file has no server")
}

async fn storm(link: &Proxy, weather: Weather, lasts: Duration) {
    link.turn(weather);
    sleep(lasts).await;
    link.turn(Weather::Clear);
}

/// A read transaction of the SQLite file that is open for three times as long.
async fn read_for(url: &str, lasts: Duration) -> Result<()> {
    let mut reader = Database::connect(Engine::Sqlite, url).await?;
    reader.execute("BEGIN").await?;
    reader.number("SELECT count(*) FROM outbox_tasks").await?;
    sleep(lasts * 3).await;
    reader.execute("COMMIT").await
}
